"""Who is a member: keys, certificates, rosters, invitations."""
