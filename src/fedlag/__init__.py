"""Personalised federated learning that people can trust."""
