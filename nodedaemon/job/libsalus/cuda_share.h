/* Captures of streams and memory shared beyond the process: what Salus must know of them. */
#ifndef SALUS_CUDA_SHARE_H
#define SALUS_CUDA_SHARE_H

#include <stdbool.h>

#include "cuda_driver.h"

/* A stream of this process is being captured: nothing may wait for the device until that ends. */
bool capture_is_open(void);

/* Whether this stream is. */
bool capture_has(cuda_word stream);

#endif
