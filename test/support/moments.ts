import { setTimeout as sleep } from 'node:timers/promises';
import type { Method } from '../../shared/protocol/operations.ts';
import type { LinkProxy } from './link-proxy.ts';

/** What a moment in the life of a request is found by. */
interface Scene {
  proxy: LinkProxy;
  /** Sends the request; repeated calls join the first. */
  begin: () => Promise<unknown>;
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

/**
 * The three moments of a step: its call is on the way, the host is at work, its reply is on the way.
 * @param ms how long the host has been at work in the second
 */
export const aroundCall = (step: string, method: Method, ms: number): Moment[] => [
  moment(`before ${step}`, ({ proxy, begin }) => {
    const call = proxy.hold({ method, side: 'call' });
    void begin();
    return call;
  }),
  moment(`during ${step}`, async ({ proxy, begin }) => {
    const call = proxy.watch({ method, side: 'call' });
    void begin();
    await call;
    await sleep(ms);
  }),
  moment(`after ${step}`, ({ proxy, begin }) => {
    const reply = proxy.hold({ method, side: 'reply' });
    void begin();
    return reply;
  }),
];

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
