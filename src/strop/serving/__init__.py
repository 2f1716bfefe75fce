"""The policy as a server with the protocols of OpenAI and Anthropic, for agents and proxies."""
