"""Where nodes come from. Each platform renders a job as native objects, submits them, and says what became
of them."""
