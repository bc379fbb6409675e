"""The page that people watch jobs on: its files, and who may open it. The coordinator serves it."""
