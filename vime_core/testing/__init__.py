"""For plugin authors: conformance suites and fakes."""
