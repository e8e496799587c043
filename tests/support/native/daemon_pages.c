#include "daemon_pages.h"

#include "../../../nodedaemon/wire/salus_wire.h"

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
    __atomic_add_fetch(&turn->slots[slot].wake_count, 1, __ATOMIC_SEQ_CST);
    futex_wake(&turn->slots[slot].wake_count);
}

void salus_page_name(struct salus_gate_page *gate, uint32_t slot, uint64_t epoch)
{
    __atomic_store_n(&gate->successor, successor_word(epoch, slot), __ATOMIC_SEQ_CST);
}
