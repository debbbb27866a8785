"""The time to the first correct answer: key-value lookups that are asked again until they are right."""
