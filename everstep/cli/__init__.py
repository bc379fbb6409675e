"""The command line: parse, call one function, reply."""
