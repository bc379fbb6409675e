"""The coordinator: the one service that says who belongs to a job, in which generation, and what became of the others.

Facts are frozen values (`roster`), what happens to them are pure functions (`changes`), and so are all decisions
(`forming`, `health`, `ending`, put together in `advance`).
`job` and `service` are the edge: clock, store, waiting calls."""
