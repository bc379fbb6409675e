"""The process of a node that holds its workers' saved states and outlives them."""
