"""Sample logs: one planted sweep as six kinds of log, for the quick start and the tests."""
