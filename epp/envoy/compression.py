"""Request bodies compressed by the global Envoy and restored by the relay; answers stay as they are.

Gzip alone, at its fastest, because a body waits for it. Envoy 1.40's other two lose data, without an error,
of prompts that anybody may send: its zstd cut a body of 105,047 bytes off after 65,536 (chunks of 64 KiB;
issue 29020 of its tracker tells of others), its Brotli one of 1,000,014 bytes that all are the same after
262,144.

Sits behind the picker, which reads bodies plain.
"""

from __future__ import annotations

from epp.envoy import messages as api

#: Bodies that fit the first flight of a connection gain nothing.
_MIN_BYTES = 8 * 1024
_CONTENT_TYPES = ("application/json",)
_CHUNK_BYTES = 64 * 1024
#: DEFLATE shrinks nothing further than 1,032 times. Envoy stops at 100 unless told, and loses the rest.
_MOST = 1032


def compressors(how: str) -> list[api.hcm.HttpFilter]:
    """The filter that compresses long JSON bodies of requests; none for ``none``."""
    if how == "none":
        return []
    library = api.gzip.Gzip(
        compression_level=api.gzip.GzipCompressionLevel.BEST_SPEED, chunk_size=_CHUNK_BYTES
    )
    request = api.compressor.CompressorCommonDirectionConfig(
        enabled=_flag("requests", on=True), min_content_length=_MIN_BYTES, content_type=list(_CONTENT_TYPES)
    )
    response = api.compressor.CompressorCommonDirectionConfig(enabled=_flag("responses", on=False))
    config = api.compressor.Compressor(
        compressor_library=api.extension("gzip", library),
        request_direction_config=api.compressor.CompressorRequestDirectionConfig(common_config=request),
        response_direction_config=api.compressor.CompressorResponseDirectionConfig(common_config=response),
    )
    return [api.http_filter("envoy.filters.http.compressor", config)]


def decompressors(how: str) -> list[api.hcm.HttpFilter]:
    """The filter that restores them; none for ``none``."""
    if how == "none":
        return []
    library = api.gunzip.Gzip(chunk_size=_CHUNK_BYTES, max_inflate_ratio=_MOST)
    directions = api.decompressor
    request = directions.DecompressorCommonDirectionConfig(enabled=_flag("requests", on=True))
    response = directions.DecompressorCommonDirectionConfig(enabled=_flag("responses", on=False))
    config = directions.Decompressor(
        decompressor_library=api.extension("gzip", library),
        request_direction_config=directions.DecompressorRequestDirectionConfig(common_config=request),
        response_direction_config=directions.DecompressorResponseDirectionConfig(common_config=response),
    )
    return [api.http_filter("envoy.filters.http.decompressor", config)]


def _flag(what: str, *, on: bool) -> api.core.RuntimeFeatureFlag:
    return api.core.RuntimeFeatureFlag(default_value=on, runtime_key=f"epp.compress_{what}")
