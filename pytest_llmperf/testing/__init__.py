"""Public fakes: scripted server and transport, streams, records. For tests of this package and of suites."""
