"""One file per revision. Each says what it says for ever: it names its columns itself."""
