import { reservePort } from '../../dev/stack/ports.ts';

/** A free port of 127.0.0.1. No other test and no `npm start` chooses it while this process lives. */
export const freePort = (): Promise<number> => reservePort();
