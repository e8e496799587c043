#define _GNU_SOURCE
#include "patch.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#define RELOCATION_SLOT   R_X86_64_JUMP_SLOT
#define RELOCATION_GLOBAL R_X86_64_GLOB_DAT
#define RELOCATION_WORD   R_X86_64_64
#elif defined(__aarch64__)
#define RELOCATION_SLOT   R_AARCH64_JUMP_SLOT
#define RELOCATION_GLOBAL R_AARCH64_GLOB_DAT
#define RELOCATION_WORD   R_AARCH64_ABS64
#else
#error "libsalus: relocation types of this machine are not known"
#endif

struct image {
    uintptr_t base;
    uintptr_t dynamic[DT_NUM]; /* the dynamic section: value by tag */
    uintptr_t relro_start, relro_end;
};

struct search {
    const char *library;
    const struct patch *patch;
    int written_count;
    int loaded_count;
    int error;
    uintptr_t start, end;
};

static void read_dynamic(struct image *image, const ElfW(Dyn) * entry)
{
    for (; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag < DT_NUM)
            image->dynamic[entry->d_tag] = entry->d_un.d_ptr;
}

static int write_slot(const struct image *image, uintptr_t slot, void *target)
{
    uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *page = (void *)(slot & ~(page_bytes - 1));
    int is_read_only = slot >= image->relro_start && slot < image->relro_end;

    if (is_read_only && mprotect(page, page_bytes, PROT_READ | PROT_WRITE))
        return -errno;
    __atomic_store_n((void **)slot, target, __ATOMIC_SEQ_CST);
    if (is_read_only && mprotect(page, page_bytes, PROT_READ))
        return -errno;
    return 0;
}

static void patch_table(struct search *search, const struct image *image, int table_tag,
                        int size_tag)
{
    const ElfW(Sym) *symbols = (const void *)image->dynamic[DT_SYMTAB];
    const char *strings = (const void *)image->dynamic[DT_STRTAB];
    const ElfW(Rela) *entry = (const void *)image->dynamic[table_tag];
    const ElfW(Rela) *end = entry + image->dynamic[size_tag] / sizeof(*entry);

    if (!entry || !symbols || !strings)
        return;
    for (; entry < end && !search->error; entry++) {
        uint64_t type = ELF64_R_TYPE(entry->r_info);

        if (type != RELOCATION_SLOT && type != RELOCATION_GLOBAL && type != RELOCATION_WORD)
            continue;
        if (entry->r_addend ||
            strcmp(strings + symbols[ELF64_R_SYM(entry->r_info)].st_name, search->patch->symbol))
            continue;
        search->error = write_slot(image, image->base + entry->r_offset, search->patch->target);
        search->written_count += !search->error;
    }
}

static void read_extent(struct search *search, const struct dl_phdr_info *loaded)
{
    int index;

    for (index = 0; index < loaded->dlpi_phnum; index++) {
        const ElfW(Phdr) *header = &loaded->dlpi_phdr[index];
        uintptr_t start = loaded->dlpi_addr + header->p_vaddr;

        if (header->p_type != PT_LOAD)
            continue;
        if (!search->start || start < search->start)
            search->start = start;
        if (start + header->p_memsz > search->end)
            search->end = start + header->p_memsz;
    }
}

static int visit(struct dl_phdr_info *loaded, size_t size, void *argument)
{
    struct search *search = argument;
    struct image image = {.base = loaded->dlpi_addr};
    const char *name = strrchr(loaded->dlpi_name, '/');
    int index;

    (void)size;
    name = name ? name + 1 : loaded->dlpi_name;
    if (strncmp(name, search->library, strlen(search->library)))
        return 0;
    search->loaded_count++;
    if (!search->patch) {
        read_extent(search, loaded);
        return 0;
    }
    for (index = 0; index < loaded->dlpi_phnum; index++) {
        const ElfW(Phdr) *header = &loaded->dlpi_phdr[index];

        if (header->p_type == PT_DYNAMIC)
            read_dynamic(&image, (const void *)(image.base + header->p_vaddr));
        if (header->p_type == PT_GNU_RELRO) {
            image.relro_start = image.base + header->p_vaddr;
            image.relro_end = image.relro_start + header->p_memsz;
        }
    }
    patch_table(search, &image, DT_RELA, DT_RELASZ);
    patch_table(search, &image, DT_JMPREL, DT_PLTRELSZ);
    return search->error;
}

int patch_library(const char *library, const struct patch *patch)
{
    struct search search = {.library = library, .patch = patch};

    dl_iterate_phdr(visit, &search);
    return search.error ? search.error : search.written_count;
}

int patch_find(const char *library, uintptr_t *start, uintptr_t *end)
{
    struct search search = {.library = library};

    dl_iterate_phdr(visit, &search);
    *start = search.start;
    *end = search.end;
    return search.loaded_count > 0;
}
