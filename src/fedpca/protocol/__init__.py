"""The messages and questions that the coordinator and the sites exchange."""
