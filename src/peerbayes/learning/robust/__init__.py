"""Members that lie: what honest messages obey, rules that bound the others, and attacks to try them on."""
