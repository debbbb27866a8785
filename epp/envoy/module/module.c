/* A dynamic module of Envoy: an HTTP filter that reads of answers what observe.lua would read after the first
 * token, at a fraction of the cost for each piece.
 *
 * observe.lua stays: it decides which answers are watched, tells the first token, and then leaves them to this
 * filter by the number `watch` in its dynamic metadata (1 an event stream, 2 any other answer). Notes `chunks`
 * and `usage` beside it. Nothing here holds or changes a byte of an answer.
 *
 * The declarations are the part of Envoy's interface that is used (source/extensions/dynamic_modules/abi/abi.h),
 * as it is in 1.40. A hook that Envoy looks up, and that nothing here needs, does nothing.
 */
#include "scan.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ABI_VERSION "v0.2.0"
#define NAMESPACE "epp.observe"
#define DEFAULT_LIMIT 2048
#define MAX_SLICES 64
enum { CONTINUE = 0, DYNAMIC_METADATA = 0, RECEIVED_RESPONSE_BODY = 2 };
enum { UNWATCHED, STREAM, WHOLE };

struct buffer {
  const char *bytes;
  size_t length;
};

bool envoy_dynamic_module_callback_http_get_metadata_number(void *envoy, int source, struct buffer name_space,
                                                            struct buffer key, double *result);
void envoy_dynamic_module_callback_http_set_dynamic_metadata_number(void *envoy, struct buffer name_space,
                                                                    struct buffer key, double value);
void envoy_dynamic_module_callback_http_set_dynamic_metadata_string(void *envoy, struct buffer name_space,
                                                                    struct buffer key, struct buffer value);
size_t envoy_dynamic_module_callback_http_get_body_chunks_size(void *envoy, int body);
bool envoy_dynamic_module_callback_http_get_body_chunks(void *envoy, int body, struct buffer *slices);

struct config {
  size_t limit;
};

struct filter {
  size_t limit;
  struct scan *scan;
  uint64_t chunks;
};

#define TEXT(words) ((struct buffer){words, sizeof(words) - 1})

static void tell(void *envoy, struct filter *filter) {
  struct scan *scan = filter->scan;
  filter->scan = NULL;
  if (!scan)
    return;
  envoy_dynamic_module_callback_http_set_dynamic_metadata_number(envoy, TEXT(NAMESPACE), TEXT("chunks"),
                                                                 (double)filter->chunks);
  size_t room = epp_scan_room(scan);
  char *usage = malloc(room);
  size_t length = usage ? epp_scan_usage(scan, usage, room) : 0;
  if (length)
    envoy_dynamic_module_callback_http_set_dynamic_metadata_string(envoy, TEXT(NAMESPACE), TEXT("usage"),
                                                                   (struct buffer){usage, length});
  free(usage);
  epp_scan_free(scan);
}

/* One chunk of an answer, however many slices Envoy holds it in. True when the answer is complete. */
static bool feed(struct filter *filter, const struct buffer *slices, size_t count) {
  size_t length = 0, at = 0;
  for (size_t slice = 0; slice < count; slice++)
    length += slices[slice].length;
  if (!length)
    return false;
  filter->chunks++;
  if (count == 1)
    return epp_scan_feed(filter->scan, (char *)slices[0].bytes, length);
  char *whole = malloc(length);
  if (!whole)
    return false;
  for (size_t slice = 0; slice < count; at += slices[slice++].length)
    memcpy(whole + at, slices[slice].bytes, slices[slice].length);
  bool ended = epp_scan_feed(filter->scan, whole, length);
  free(whole);
  return ended;
}

const char *envoy_dynamic_module_on_program_init(void) { return ABI_VERSION; }

const void *envoy_dynamic_module_on_http_filter_config_new(void *envoy, struct buffer name,
                                                           struct buffer settings) {
  (void)envoy, (void)name;
  struct config *config = malloc(sizeof *config);
  if (!config)
    return NULL;
  config->limit = 0;
  for (size_t at = 0; at < settings.length && at < 6; at++) {
    if (settings.bytes[at] < '0' || settings.bytes[at] > '9')
      break;
    config->limit = config->limit * 10 + (size_t)(settings.bytes[at] - '0');
  }
  if (!config->limit)
    config->limit = DEFAULT_LIMIT;
  return config;
}

void envoy_dynamic_module_on_http_filter_config_destroy(const void *config) { free((void *)config); }

const void *envoy_dynamic_module_on_http_filter_new(const void *config, void *envoy) {
  (void)envoy;
  struct filter *filter = calloc(1, sizeof *filter);
  if (filter)
    filter->limit = ((const struct config *)config)->limit;
  return filter;
}

void envoy_dynamic_module_on_http_filter_destroy(const void *module) {
  if (module)
    epp_scan_free(((struct filter *)module)->scan);
  free((void *)module);
}

int envoy_dynamic_module_on_http_filter_response_headers(void *envoy, const void *module, bool ends) {
  struct filter *filter = (struct filter *)module;
  double watch = UNWATCHED;
  if (!ends && envoy_dynamic_module_callback_http_get_metadata_number(envoy, DYNAMIC_METADATA, TEXT(NAMESPACE),
                                                                      TEXT("watch"), &watch) &&
      (watch == STREAM || watch == WHOLE)) {
    epp_scan_free(filter->scan);
    filter->scan = epp_scan_new(filter->limit, watch == STREAM);
  }
  return CONTINUE;
}

int envoy_dynamic_module_on_http_filter_response_body(void *envoy, const void *module, bool ends) {
  struct filter *filter = (struct filter *)module;
  if (!filter->scan)
    return CONTINUE;
  size_t count = envoy_dynamic_module_callback_http_get_body_chunks_size(envoy, RECEIVED_RESPONSE_BODY);
  struct buffer few[MAX_SLICES], *slices = few;
  if (count > MAX_SLICES)
    slices = calloc(count, sizeof *slices);
  bool ended = false;
  if (slices && count &&
      envoy_dynamic_module_callback_http_get_body_chunks(envoy, RECEIVED_RESPONSE_BODY, slices))
    ended = feed(filter, slices, count);
  if (slices != few)
    free(slices);
  if (ended || ends)
    tell(envoy, filter);
  return CONTINUE;
}

int envoy_dynamic_module_on_http_filter_response_trailers(void *envoy, const void *module) {
  tell(envoy, (struct filter *)module);
  return CONTINUE;
}

int envoy_dynamic_module_on_http_filter_request_headers(void *envoy, const void *module, bool ends) {
  (void)envoy, (void)module, (void)ends;
  return CONTINUE;
}

int envoy_dynamic_module_on_http_filter_request_body(void *envoy, const void *module, bool ends) {
  (void)envoy, (void)module, (void)ends;
  return CONTINUE;
}

int envoy_dynamic_module_on_http_filter_request_trailers(void *envoy, const void *module) {
  (void)envoy, (void)module;
  return CONTINUE;
}

#define UNUSED(hook) \
  void envoy_dynamic_module_on_http_filter_##hook(void) {}
UNUSED(stream_complete)
UNUSED(http_callout_done)
UNUSED(http_stream_headers)
UNUSED(http_stream_data)
UNUSED(http_stream_trailers)
UNUSED(http_stream_complete)
UNUSED(http_stream_reset)
UNUSED(scheduled)
UNUSED(downstream_above_write_buffer_high_watermark)
UNUSED(downstream_below_write_buffer_low_watermark)
