/* Finds in an answer what it cost, piece by piece: the "usage" objects and what ends an event stream.
 *
 * Owns what has been found of one answer, by the rules of observe.lua. Pieces are set aside first and read some
 * dozens at a time, one by one: Envoy comes here with a token every few milliseconds, when other work has the
 * processor's caches, and copying a hundred bytes then costs a fraction of looking for names in them. So what
 * has been found is known for sure only after `epp_scan_end`. Knows nothing of Envoy. Bytes come from upstreams
 * and are trusted in nothing: all lengths are bounded, nothing recurses, no byte is looked at more often than
 * the longest object has bytes, and a failed allocation loses usage alone.
 */
#define _GNU_SOURCE
#include "scan.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 32 /* no name that is looked for is longer, quotes and key included */
#define MAX_BATCH 16  /* prompts of one batch whose counts are told apart; of a larger one nothing is told */
#define NOWHERE ((size_t)-1)
#define BATCH_BYTES 4096 /* set aside at most */
#define BATCH_PIECES 64

struct text {
  char *bytes;
  size_t length;
};

struct prompt {
  struct text id, object;
};

struct scan {
  size_t limit; /* longest object that is kept */
  bool streamed, over, complete;
  size_t pieces; /* read, up to the one that completes the answer */
  size_t ends[BATCH_PIECES], waiting, held; /* pieces that are set aside: where each ends, how many, bytes */
  char *aside;
  struct text carry, first, last;
  struct prompt batch[MAX_BATCH];
  size_t known, prompts;
};

/* What an object that tells the usage counts; one without is of a client's, a tool's parameter of that name. */
static const char *const COUNTS[] = {"prompt_tokens",           "completion_tokens",
                                     "total_tokens",            "input_tokens",
                                     "output_tokens",           "cached_tokens",
                                     "cache_read_input_tokens", "cache_creation_input_tokens"};
static const char *const LAST_TYPES[] = {"response.completed\"", "response.incomplete\"", "response.failed\""};

static void drop(struct text *text) {
  free(text->bytes);
  text->bytes = NULL;
  text->length = 0;
}

static void keep(struct text *into, const char *bytes, size_t length) {
  char *copy = length ? malloc(length) : NULL;
  if (copy)
    memcpy(copy, bytes, length);
  drop(into);
  into->bytes = copy;
  into->length = copy ? length : 0;
}

static bool same(const struct text *text, const char *bytes, size_t length) {
  return text->length == length && (!length || memcmp(text->bytes, bytes, length) == 0);
}

static size_t find(const char *text, size_t length, size_t from, const char *what) {
  const char *at = from < length ? memmem(text + from, length - from, what, strlen(what)) : NULL;
  return at ? (size_t)(at - text) : NOWHERE;
}

static size_t past_space(const char *text, size_t length, size_t at) {
  while (at < length && (text[at] == ' ' || text[at] == '\n' || text[at] == '\r' || text[at] == '\t'))
    at++;
  return at;
}

/* Where the object that opens at `at` closes, NOWHERE if not in this text. */
static size_t closing(const char *text, size_t length, size_t at) {
  size_t depth = 0;
  for (bool quoted = false; at < length; at++) {
    char byte = text[at];
    if (quoted && byte == '\\')
      at++;
    else if (byte == '"')
      quoted = !quoted;
    else if (!quoted && byte == '{')
      depth++;
    else if (!quoted && byte == '}' && --depth == 0)
      return at;
  }
  return NOWHERE;
}

/* What follows "type" or "id", white space, a colon and white space from `at` on; NOWHERE for something else. */
static size_t value_after(const char *text, size_t length, size_t at) {
  while (at < length && isspace((unsigned char)text[at]))
    at++;
  if (at >= length || text[at] != ':')
    return NOWHERE;
  do
    at++;
  while (at < length && isspace((unsigned char)text[at]));
  return at;
}

/* The prompt that a meta_info object is of, nothing when it does not say. */
static struct text prompt_of(char *object, size_t length) {
  struct text id = {object, 0};
  for (size_t at = 0; (at = find(object, length, at, "\"id\"")) != NOWHERE; at++) {
    size_t value = value_after(object, length, at + 4);
    if (value == NOWHERE || value >= length || object[value] != '"')
      continue;
    char *end = memchr(object + value + 1, '"', length - value - 1);
    if (end) {
      id.bytes = object + value + 1;
      id.length = (size_t)(end - id.bytes);
      break;
    }
  }
  return id;
}

static bool is_count(const char *name, size_t length) {
  for (size_t at = 0; at < sizeof COUNTS / sizeof *COUNTS; at++)
    if (strlen(COUNTS[at]) == length && memcmp(COUNTS[at], name, length) == 0)
      return true;
  return false;
}

static bool has_counts(const char *object, size_t length) {
  for (size_t at = 0; (at = find(object, length, at, "_tokens\"")) != NOWHERE; at++) {
    size_t ends = at + 7, begins = at, value = value_after(object, length, ends + 1);
    while (begins && object[begins - 1] != '"')
      begins--;
    if (value != NOWHERE && value < length && isdigit((unsigned char)object[value]) &&
        is_count(object + begins, ends - begins))
      return true;
  }
  return false;
}

static void take(struct scan *scan, bool usage, char *object, size_t length) {
  if (usage) {
    if (!has_counts(object, length))
      return;
    keep(&scan->last, object, length);
    if (scan->streamed && !scan->first.length)
      keep(&scan->first, object, length);
    return;
  }
  struct text id = prompt_of(object, length);
  for (size_t at = 0; at < scan->known; at++)
    if (same(&scan->batch[at].id, id.bytes, id.length)) {
      keep(&scan->batch[at].object, object, length);
      return;
    }
  scan->prompts++;
  if (scan->known == MAX_BATCH)
    return;
  keep(&scan->batch[scan->known].id, id.bytes, id.length);
  keep(&scan->batch[scan->known].object, object, length);
  scan->known++;
}

/* Takes the objects of a name: in generated text quotes are escaped, so a name in plain quotes followed by an
 * object is the real one. Tells where one begins that the next piece may finish. */
static size_t search(struct scan *scan, char *text, size_t length, const char *bare, bool usage) {
  size_t from = 0, at;
  while ((at = find(text, length, from, bare)) != NOWHERE) {
    from = at + strlen(bare);
    if (!at || text[at - 1] != '"')
      continue;
    size_t opens = past_space(text, length, from);
    if (opens < length && text[opens] == ':')
      opens = past_space(text, length, opens + 1);
    else if (opens < length)
      continue;
    bool opened = opens < length && text[opens] == '{';
    size_t looked = length - at < scan->limit ? length : at + scan->limit - 1;
    size_t closes = opened ? closing(text, looked, opens) : NOWHERE;
    if (closes != NOWHERE) {
      take(scan, usage, text + opens, closes - opens + 1);
      from = closes + 1;
    } else if ((opened || opens >= length) && length - at + 1 < scan->limit)
      return at - 1;
  }
  return NOWHERE;
}

static bool has_type(const char *text, size_t length, const char *type) {
  for (size_t at = 0; (at = find(text, length, at, "\"type\"")) != NOWHERE; at++) {
    size_t value = value_after(text, length, at + 6), size = strlen(type);
    if (value != NOWHERE && value < length && text[value] == '"' && length - value - 1 >= size &&
        memcmp(text + value + 1, type, size) == 0)
      return true;
  }
  return false;
}

/* A line that is OpenAI's mark. */
static bool has_mark(const char *text, size_t length) {
  for (size_t at = 0; (at = find(text, length, at, "[DONE]")) != NOWHERE; at++) {
    size_t begins = at && text[at - 1] == ' ' ? at - 1 : at;
    if (begins >= 5 && memcmp(text + begins - 5, "data:", 5) == 0 &&
        (begins == 5 || text[begins - 6] == '\n'))
      return true;
  }
  return false;
}

/* OpenAI's mark, the last event of Anthropic's messages, and those of OpenAI's responses. */
static bool ends_stream(const char *text, size_t length) {
  if (has_mark(text, length))
    return true;
  if (find(text, length, 0, "message_stop\"") != NOWHERE)
    return has_type(text, length, "message_stop\"");
  if (find(text, length, 0, "response.") == NOWHERE)
    return false;
  for (size_t at = 0; at < sizeof LAST_TYPES / sizeof *LAST_TYPES; at++)
    if (find(text, length, 0, LAST_TYPES[at]) != NOWHERE && has_type(text, length, LAST_TYPES[at]))
      return true;
  return false;
}

static bool blank_line_at_end(const char *text, size_t length) {
  if (length < 2 || text[length - 1] != '\n')
    return false;
  return text[length - 2] == '\n' || (length > 2 && text[length - 2] == '\r' && text[length - 3] == '\n');
}

/* The next piece. True when the event has come that ends the stream, and is whole. */
static bool feed(struct scan *scan, char *text, size_t length) {
  size_t usage = search(scan, text, length, "usage\"", true);
  size_t meta = search(scan, text, length, "meta_info\"", false);
  size_t from = usage < meta ? usage : meta;
  if (scan->streamed && !scan->over)
    scan->over = ends_stream(text, length);
  bool ended = scan->over && blank_line_at_end(text, length);
  if (from == NOWHERE) {
    bool line = length && text[length - 1] == '\n' && !scan->over;
    from = line ? length : length > NAME_BYTES ? length - NAME_BYTES : 0;
  }
  keep(&scan->carry, text + from, length - from);
  return ended;
}

/* New for one answer; NULL without memory. */
struct scan *epp_scan_new(size_t limit, bool streamed) {
  struct scan *scan = calloc(1, sizeof *scan);
  if (scan) {
    scan->limit = limit;
    scan->streamed = streamed;
  }
  return scan;
}

void epp_scan_free(struct scan *scan) {
  if (!scan)
    return;
  free(scan->aside);
  drop(&scan->carry);
  drop(&scan->first);
  drop(&scan->last);
  for (size_t at = 0; at < scan->known; at++) {
    drop(&scan->batch[at].id);
    drop(&scan->batch[at].object);
  }
  free(scan);
}

/* Reads a piece, in place where nothing waits for it. */
static void read_piece(struct scan *scan, char *piece, size_t length) {
  if (scan->complete)
    return;
  scan->pieces++;
  if (!scan->carry.length) {
    scan->complete = feed(scan, piece, length);
    return;
  }
  size_t whole = scan->carry.length + length;
  char *text = malloc(whole);
  if (!text)
    return;
  memcpy(text, scan->carry.bytes, scan->carry.length);
  memcpy(text + scan->carry.length, piece, length);
  scan->complete = feed(scan, text, whole);
  free(text);
}

static void read_aside(struct scan *scan) {
  for (size_t at = 0, from = 0; at < scan->waiting; from = scan->ends[at++])
    read_piece(scan, scan->aside + from, scan->ends[at] - from);
  scan->waiting = scan->held = 0;
}

/* The next piece of an answer; an empty one is none. */
void epp_scan_add(struct scan *scan, char *piece, size_t length) {
  if (!length || scan->complete)
    return;
  if (length > BATCH_BYTES - scan->held || scan->waiting == BATCH_PIECES)
    read_aside(scan);
  if (!scan->aside && length <= BATCH_BYTES)
    scan->aside = malloc(BATCH_BYTES);
  if (!scan->aside || length > BATCH_BYTES) {
    read_piece(scan, piece, length);
    return;
  }
  memcpy(scan->aside + scan->held, piece, length);
  scan->ends[scan->waiting++] = scan->held += length;
}

/* Nothing more comes, or nothing that is waited for: reads what was set aside. True when the event has come
 * that ends a stream. */
bool epp_scan_end(struct scan *scan) {
  read_aside(scan);
  return scan->complete;
}

/* Pieces up to the one that completed the answer; all of them when none did. */
size_t epp_scan_pieces(const struct scan *scan) { return scan->pieces; }

static size_t add(char *into, size_t room, size_t at, const char *name, const struct text *object) {
  size_t size = strlen(name);
  if (!object->length || object->length + size > room - at)
    return at;
  memcpy(into + at, name, size);
  at += size;
  for (size_t byte = 0; byte < object->length; byte++, at++)
    into[at] = object->bytes[byte] < 32 || object->bytes[byte] > 126 ? ' ' : object->bytes[byte];
  return at;
}

/* Most that `epp_scan_usage` writes. */
size_t epp_scan_room(const struct scan *scan) {
  return (scan->known + 2) * (scan->limit + NAME_BYTES);
}

/* All that was found, in printable ASCII; its length, 0 for nothing. */
size_t epp_scan_usage(const struct scan *scan, char *into, size_t room) {
  size_t at = add(into, room, 0, "\"usage\":", &scan->first);
  if (!same(&scan->first, scan->last.bytes, scan->last.length))
    at = add(into, room, at, "\"usage\":", &scan->last);
  if (scan->prompts <= MAX_BATCH)
    for (size_t prompt = 0; prompt < scan->known; prompt++)
      at = add(into, room, at, "\"meta_info\":", &scan->batch[prompt].object);
  return at;
}
