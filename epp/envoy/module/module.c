/* A dynamic module of Envoy: an HTTP filter that reads of answers what observe.lua would read after the first
 * token, at a fraction of the cost for each piece.
 *
 * observe.lua stays: it decides which answers are watched, tells the first token, and then leaves them to this
 * filter by the number `watch` in its dynamic metadata (1 an event stream, 2 any other answer). Notes `chunks`
 * and `usage` beside it, at the latest when the request is over, which is before it is logged. Nothing here holds
 * up or changes a byte of an answer.
 *
 * The declarations are the part of Envoy's interface that is used (source/extensions/dynamic_modules/abi/abi.h),
 * as it is in 1.40. A hook that Envoy looks up, and that nothing here needs, does nothing.
 */
#include "scan.h"

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
};

#define TEXT(words) ((struct buffer){words, sizeof(words) - 1})

/* What was found, once: of an answer that has `ended`, or of a stream whose last event has come. */
static void tell(void *envoy, struct filter *filter, bool ended) {
  struct scan *scan = filter->scan;
  if (!scan)
    return;
  if (!epp_scan_end(scan) && !ended)
    return;
  filter->scan = NULL;
  envoy_dynamic_module_callback_http_set_dynamic_metadata_number(envoy, TEXT(NAMESPACE), TEXT("chunks"),
                                                                 (double)epp_scan_pieces(scan));
  size_t room = epp_scan_room(scan);
  char *usage = malloc(room);
  size_t length = usage ? epp_scan_usage(scan, usage, room) : 0;
  if (length)
    envoy_dynamic_module_callback_http_set_dynamic_metadata_string(envoy, TEXT(NAMESPACE), TEXT("usage"),
                                                                   (struct buffer){usage, length});
  free(usage);
  epp_scan_free(scan);
}

/* One chunk of an answer, however many slices Envoy holds it in. */
static void take(struct scan *scan, const struct buffer *slices, size_t count) {
  if (count == 1) {
    epp_scan_add(scan, (char *)slices[0].bytes, slices[0].length);
    return;
  }
  size_t length = 0, at = 0;
  for (size_t slice = 0; slice < count; slice++)
    length += slices[slice].length;
  char *whole = malloc(length);
  if (!whole)
    return;
  for (size_t slice = 0; slice < count; at += slices[slice++].length)
    memcpy(whole + at, slices[slice].bytes, slices[slice].length);
  epp_scan_add(scan, whole, length);
  free(whole);
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
  if (slices && count &&
      envoy_dynamic_module_callback_http_get_body_chunks(envoy, RECEIVED_RESPONSE_BODY, slices))
    take(filter->scan, slices, count);
  if (slices != few)
    free(slices);
  if (ends)
    tell(envoy, filter, true);
  return CONTINUE;
}

int envoy_dynamic_module_on_http_filter_response_trailers(void *envoy, const void *module) {
  tell(envoy, (struct filter *)module, true);
  return CONTINUE;
}

/* Before the request is logged: of a stream that the client left at its last event. */
void envoy_dynamic_module_on_http_filter_stream_complete(void *envoy, const void *module) {
  tell(envoy, (struct filter *)module, false);
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
UNUSED(http_callout_done)
UNUSED(http_stream_headers)
UNUSED(http_stream_data)
UNUSED(http_stream_trailers)
UNUSED(http_stream_complete)
UNUSED(http_stream_reset)
UNUSED(scheduled)
UNUSED(downstream_above_write_buffer_high_watermark)
UNUSED(downstream_below_write_buffer_low_watermark)
