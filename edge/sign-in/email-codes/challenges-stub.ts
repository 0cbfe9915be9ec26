import type { Env } from '../../env.ts';

/** The challenges of an e-mail address. */
export const challengesOf = ({ CHALLENGES }: Env, address: string) =>
  CHALLENGES.get(CHALLENGES.idFromName(address.toLowerCase()));
