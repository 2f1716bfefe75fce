"""The policy as a server with OpenAI's protocol, which agents and their proxies call."""
