"""What runs on a node: the agent, which starts workers and watches them."""
