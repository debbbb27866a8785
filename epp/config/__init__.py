"""Typed configuration: strict decoding, errors that name file, key and fix."""
