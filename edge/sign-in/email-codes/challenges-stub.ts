import type { Env } from '../../env.ts';

/** The `Challenges` object of an e-mail address. */
export const challengesOf = ({ CHALLENGES }: Env, address: string) =>
  CHALLENGES.get(CHALLENGES.idFromName(address.toLowerCase()));
