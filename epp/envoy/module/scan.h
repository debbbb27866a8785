/* What the module asks of scan.c; the tests ask the same. */
#ifndef EPP_SCAN_H
#define EPP_SCAN_H

#include <stdbool.h>
#include <stddef.h>

struct scan;

struct scan *epp_scan_new(size_t limit, bool streamed);
void epp_scan_free(struct scan *scan);
void epp_scan_add(struct scan *scan, char *piece, size_t length);
bool epp_scan_end(struct scan *scan);
size_t epp_scan_pieces(const struct scan *scan);
size_t epp_scan_room(const struct scan *scan);
size_t epp_scan_usage(const struct scan *scan, char *into, size_t room);

#endif
