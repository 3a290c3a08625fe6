"""`headrace bench http`: what the OpenAI-compatible door adds to gRPC, and how many streams it carries."""
