import { setTimeout as sleep } from 'node:timers/promises';
import type { Method } from '../../../shared/protocol/operations.ts';
import type { LinkProxy } from './link-proxy.ts';

/** What a moment in the life of a request is found by. */
interface Scene {
  proxy: LinkProxy;
  /** Sends the request; repeated calls join the first. */
  begin: () => Promise<unknown>;
  /** Resolves when PostgreSQL begins to make another database. */
  databaseBegun: () => Promise<unknown>;
  /** Resolves when no job is open any more. */
  jobsEnded: () => Promise<unknown>;
}

/** A moment at which something dies. */
export interface Moment {
  name: string;
  /** Resolves at that moment. A frame that is held then stays held until the victim is dead. */
  reach: (scene: Scene) => Promise<unknown>;
}

const moment = (name: string, reach: Moment['reach']): Moment => ({ name, reach });

/** The request is made while a part is dead already. */
export const beforeRequest = (step: string) => moment(`before ${step}`, async () => {});

/** @param ms after sending the request, when it is being recorded */
export const soonAfterRequest = (step: string, ms: number) =>
  moment(`during ${step}`, ({ begin }) => {
    void begin();
    return sleep(ms);
  });

/** A step's call is on the way to the host. */
export const beforeCall = (step: string, method: Method) =>
  moment(`before ${step}`, ({ proxy, begin }) => {
    const call = proxy.hold({ method, side: 'call' });
    void begin();
    return call;
  });

/** The host has been at work for so long. Should it be done by then, the gateway does not hear of it. */
const duringCall = (step: string, method: Method, ms: number) =>
  moment(`during ${step}, after ${ms} ms`, async ({ proxy, begin }) => {
    const call = proxy.watch({ method, side: 'call' });
    void proxy.hold({ method, side: 'reply' });
    void begin();
    await call;
    await sleep(ms);
  });

/** A step's reply is on the way back. */
export const afterReply = (step: string, method: Method) =>
  moment(`after ${step}`, ({ proxy, begin }) => {
    const reply = proxy.hold({ method, side: 'reply' });
    void begin();
    return reply;
  });

/** All moments of a step. @param ms how long the host has been at work, for each moment during it */
export const around = (step: string, method: Method, ...ms: number[]): Moment[] => [
  beforeCall(step, method),
  ...ms.map((delay) => duringCall(step, method, delay)),
  afterReply(step, method),
];

/** @param ms after the first file of a new database was there, while the others are being copied */
export const duringCopy = (step: string, ms: number) =>
  moment(`during ${step}, ${ms} ms into the copy`, async ({ begin, databaseBegun }) => {
    const begun = databaseBegun();
    void begin();
    await begun;
    await sleep(ms);
  });

/** @param ms after the last reply went on to the gateway, which then writes down the end of the job */
export const soonAfterReply = (step: string, method: Method, ms: number) =>
  moment(`during ${step}`, async ({ proxy, begin }) => {
    const reply = proxy.watch({ method, side: 'reply' });
    void begin();
    await reply;
    await sleep(ms);
  });

/** Everything is on record. */
export const afterEnd = (step: string) =>
  moment(`after ${step}`, async ({ begin, jobsEnded }) => {
    await begin();
    await jobsEnded();
  });
