#include "daemon_pages.h"

#include "../../wire/salus_wire.h"

void salus_page_init_gate(struct salus_gate_page *gate, uint64_t session)
{
    gate->session = session;
    gate->version = SALUS_PAGE_VERSION;
    __atomic_store_n(&gate->magic, SALUS_MAGIC, __ATOMIC_RELEASE);
}

void salus_page_init_turn(struct salus_turn_page *turn)
{
    turn->version = SALUS_PAGE_VERSION;
    __atomic_store_n(&turn->magic, SALUS_MAGIC, __ATOMIC_RELEASE);
}

void salus_page_arm(struct salus_gate_page *gate, uint64_t lane, uint64_t lane_epoch,
                    uint64_t epoch, uint32_t limit_count)
{
    /* A successor named for an earlier grant of this session must not be started by this one. */
    __atomic_store_n(&gate->successor, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&gate->lane, lane, __ATOMIC_RELAXED);
    __atomic_store_n(&gate->lane_epoch, lane_epoch, __ATOMIC_RELAXED);
    __atomic_store_n(&gate->lease, lease_word(epoch, limit_count), __ATOMIC_SEQ_CST);
}

void salus_page_grant(struct salus_gate_page *gate, struct salus_turn_page *turn, uint32_t slot,
                      uint64_t lane, uint64_t lane_epoch, uint64_t epoch, uint32_t limit_count)
{
    salus_page_arm(gate, lane, lane_epoch, epoch, limit_count);
    __atomic_store_n(&gate->grant, epoch, __ATOMIC_SEQ_CST);
    salus_page_wake(turn, slot);
}

int salus_page_disarm(struct salus_gate_page *gate, uint64_t epoch)
{
    uint64_t seen = __atomic_load_n(&gate->state, __ATOMIC_SEQ_CST);

    if (state_epoch(seen) >= epoch)
        return 1;
    __atomic_store_n(&gate->lease, 0, __ATOMIC_SEQ_CST);
    /* The session may be between its look at the lease and its swap: another sequence makes that
     * swap fail. */
    for (;;) {
        uint8_t sequence = (uint8_t)(state_sequence(seen) + 1);
        uint64_t next = state_word(state_epoch(seen), sequence, state_of(seen));

        if (state_epoch(seen) >= epoch)
            return 1;
        if (__atomic_compare_exchange_n(&gate->state, &seen, next, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
            return 0;
    }
}

void salus_page_limit(struct salus_gate_page *gate, uint64_t epoch, uint32_t further_count)
{
    uint64_t seen = __atomic_load_n(&gate->state, __ATOMIC_SEQ_CST);
    uint64_t started_count = __atomic_load_n(&gate->started_count, __ATOMIC_RELAXED);
    uint64_t limit_count;

    /* Not started yet: the count still belongs to the grant before. */
    if (state_epoch(seen) != epoch)
        started_count = 0;
    limit_count = started_count + further_count;
    if (limit_count >= SALUS_UNLIMITED)
        limit_count = SALUS_UNLIMITED - 1;
    __atomic_store_n(&gate->lease, lease_word(epoch, (uint32_t)limit_count), __ATOMIC_SEQ_CST);
}

uint64_t salus_page_name(struct salus_gate_page *gate, uint32_t slot, uint64_t epoch)
{
    uint64_t word = epoch ? epoch << 16 | (slot + 1) : 0;

    return __atomic_exchange_n(&gate->successor, word, __ATOMIC_SEQ_CST) >> 16;
}

void salus_page_revoke(struct salus_gate_page *gate, uint64_t epoch)
{
    __atomic_store_n(&gate->lease, lease_word(epoch, 0), __ATOMIC_SEQ_CST);
}

int salus_page_take_idle(struct salus_gate_page *gate, uint64_t epoch)
{
    uint64_t seen = __atomic_load_n(&gate->state, __ATOMIC_SEQ_CST);
    uint64_t next;

    do {
        if (state_of(seen) != SALUS_STATE_IDLE || state_epoch(seen) != epoch)
            return 0;
        next = state_word(epoch, (uint8_t)(state_sequence(seen) + 1), SALUS_STATE_REVOKED);
    } while (!__atomic_compare_exchange_n(&gate->state, &seen, next, false, __ATOMIC_SEQ_CST,
                                          __ATOMIC_SEQ_CST));
    return 1;
}

void salus_page_wake(struct salus_turn_page *turn, uint32_t slot)
{
    __atomic_add_fetch(&turn->slots[slot].bell, 1, __ATOMIC_SEQ_CST);
    futex_wake(&turn->slots[slot].bell);
}

void salus_page_launch(struct salus_gate_page *gate, uint32_t is_held, uint32_t in_flight_max)
{
    uint64_t word = (uint64_t)in_flight_max << 32 | !!is_held;

    __atomic_store_n(&gate->launch, word, __ATOMIC_SEQ_CST);
    futex_wake((uint32_t *)&gate->launch);
}
