/*
 * Numbered points around every write to shared state. A test kills a session at each of them
 * (tests/support/native/point.c). Compiled to nothing unless SALUS_FAULT_POINTS is defined.
 */
#ifndef SALUS_POINT_H
#define SALUS_POINT_H

enum salus_point {
    POINT_NONE,
    POINT_BEFORE_COUNT,     /* boundary: may start, nothing counted */
    POINT_COUNT_STORED,     /* boundary: iteration counts written */
    POINT_BEFORE_RETURN,    /* hand-over: nothing written yet */
    POINT_STASHED,          /* survivors are private, lane still held */
    POINT_RETURN_NOTED,     /* the counts of RETURN are on the page, the grant still held */
    POINT_STATE_LEFT,       /* state says WAITING or OUT */
    POINT_SUCCESSOR_TAKEN,  /* successor exchanged with 0 */
    POINT_OWED_WRITTEN,     /* decided who reports to salusd, nothing offered */
    POINT_OFFER_WRITTEN,    /* offer written, wake_count not incremented */
    POINT_WAKE_COUNTED,     /* wake_count incremented, not woken */
    POINT_WOKEN,            /* successor woken, RETURN not sent */
    POINT_RETURN_SENT,      /* RETURN sent, not waiting yet */
    POINT_CPU_STORED,       /* waiter: cpu written */
    POINT_SLEEPERS_RAISED,  /* waiter: announced, not asleep */
    POINT_SLEEPERS_LOWERED, /* waiter: awake, nothing claimed */
    POINT_STARTED,          /* state says RUNNING, nothing else done */
    POINT_OWED_TAKEN,       /* started, STARTED to be sent */
    POINT_LANE_OPEN,        /* started, lane accessible */
    POINT_STARTED_SENT,     /* STARTED sent in place of the predecessor's RETURN */
    POINT_IDLE,             /* state says IDLE */
    POINT_IDLE_ENDED,       /* state says RUNNING again */
    POINT_LAST,
};

#ifdef SALUS_FAULT_POINTS
void salus_point(enum salus_point point);
#define SALUS_POINT(point) salus_point(point)
/* True if a test asks for this negative control in the environment. Needs <stdlib.h>. */
#define SALUS_TEST_SWITCH(name) (getenv(name) != NULL)
#else
#define SALUS_POINT(point)      ((void)0)
#define SALUS_TEST_SWITCH(name) 0
#endif

#endif
