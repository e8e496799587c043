/* Stream captures, and memory that is shared between processes. */
#ifndef SALUS_CUDA_SHARE_H
#define SALUS_CUDA_SHARE_H

#include <stdbool.h>

#include "cuda_driver.h"

/* True while a stream is being captured: nothing may wait for the device until that ends. */
bool capture_is_open(void);

/* True while this stream is being captured. */
bool capture_has(cuda_word stream);

#endif
