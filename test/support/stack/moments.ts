import { setTimeout as sleep } from 'node:timers/promises';
import type { Method } from '../../../shared/protocol/operations.ts';
import type { FrameState, LinkProxy, StepProgress } from './link-proxy.ts';

/** A statement of a step that PostgreSQL makes wait while a test has locked the table. */
export interface Barrier {
  table: string;
  /** A pattern of SQL's LIKE. */
  statement: string;
  /** `access exclusive` blocks readers too. Default: `share`, which blocks writers. */
  mode?: 'share' | 'access exclusive';
  /** A concurrent step that uses the table too, and finishes before it is locked. */
  after?: Method;
}

/** What a moment in the life of a request is recognised by. */
interface Scene {
  proxy: LinkProxy;
  /** Sends the request; repeated calls join the first. */
  begin: () => Promise<unknown>;
  /**
   * Locks the table. The lock is released after the kill.
   * @returns resolves when the statement waits for it
   */
  block: (barrier: Barrier) => Promise<() => Promise<void>>;
  /** Resolves when PostgreSQL creates the directory of another database. */
  databaseBegun: () => Promise<unknown>;
  /** Resolves when no job is open. */
  jobsEnded: () => Promise<unknown>;
}

/** What the proxy must have seen of a step's call and reply when the victim is killed. */
interface Landing {
  method: Method;
  call: FrameState[];
  reply: FrameState[];
}

/** A moment at which something is killed. */
export interface Moment {
  name: string;
  /** Resolves at that moment. Frames that are held stay held until the victim is dead. */
  reach: (scene: Scene) => Promise<unknown>;
  /** The state of each step named here proves that the kill landed inside the moment. */
  landings: Landing[];
}

/** Whether the step has come as far as the moment says. */
export const hasLanded = ({ call, reply }: StepProgress, landing: Landing): boolean =>
  landing.call.includes(call) && landing.reply.includes(reply);

const UNSENT: Pick<Landing, 'call' | 'reply'> = { call: ['unsent'], reply: ['unsent'] };
const UNDELIVERED: Pick<Landing, 'call' | 'reply'> = { call: ['unsent', 'held'], reply: ['unsent'] };
const AT_WORK: Pick<Landing, 'call' | 'reply'> = { call: ['delivered'], reply: ['unsent'] };
/** The host may have finished; the gateway does not know. */
const UNANSWERED: Pick<Landing, 'call' | 'reply'> = { call: ['delivered'], reply: ['unsent', 'held'] };
const REPLY_HELD: Pick<Landing, 'call' | 'reply'> = { call: ['delivered'], reply: ['held'] };
const ANSWERED: Pick<Landing, 'call' | 'reply'> = { call: ['delivered'], reply: ['delivered'] };

/** A part is dead before the request is sent. @param method the first call that the request leads to */
export const beforeRequest = (step: string, method: Method): Moment => ({
  name: `before ${step}`,
  landings: [{ method, ...UNSENT }],
  reach: async () => {},
});

/**
 * The gateway has the request, and no call of its job has reached the host.
 * @param ms after sending the request
 * @param methods the calls that the job begins with
 */
export const soonAfterRequest = (step: string, ms: number, ...methods: Method[]): Moment => ({
  name: `during ${step}`,
  landings: methods.map((method) => ({ method, ...UNDELIVERED })),
  reach: ({ proxy, begin }) => {
    for (const method of methods) void proxy.hold({ method, side: 'call' });
    void begin();
    return sleep(ms);
  },
});

/** A step's call is on the way to the host. */
export const beforeCall = (step: string, method: Method): Moment => ({
  name: `before ${step}`,
  landings: [{ method, call: ['held'], reply: ['unsent'] }],
  reach: ({ proxy, begin }) => {
    const call = proxy.hold({ method, side: 'call' });
    void begin();
    return call;
  },
});

/** The host is at work on a step: PostgreSQL has one of its statements wait. */
const atStatement = (step: string, method: Method, barrier: Barrier): Moment => ({
  name: `during ${step}, while it waits for ${barrier.table}`,
  landings: [{ method, ...AT_WORK }],
  reach: async ({ proxy, begin, block }) => {
    const call = proxy.hold({ method, side: 'call' });
    const other = barrier.after && proxy.watch({ method: barrier.after, side: 'reply' });
    void begin();
    await call;
    await other;
    // Earlier steps may use the same table.
    const blocked = await block(barrier);
    proxy.letGo();
    await blocked();
  },
});

/** The host has been at work for so long, if it has not finished; the gateway does not receive its reply. */
export const afterMilliseconds = (step: string, method: Method, ...times: number[]): Moment[] =>
  times.map((ms) => ({
    name: `during ${step}, after ${ms} ms`,
    landings: [{ method, ...UNANSWERED }],
    reach: async ({ proxy, begin }) => {
      const call = proxy.watch({ method, side: 'call' });
      void proxy.hold({ method, side: 'reply' });
      void begin();
      await call;
      await sleep(ms);
    },
  }));

/** A step's reply is on the way back. */
export const afterReply = (step: string, method: Method): Moment => ({
  name: `after ${step}`,
  landings: [{ method, ...REPLY_HELD }],
  reach: ({ proxy, begin }) => {
    const reply = proxy.hold({ method, side: 'reply' });
    void begin();
    return reply;
  },
});

/** All moments of a step, with one for each statement during it. */
export const around = (step: string, method: Method, ...barriers: Barrier[]): Moment[] => [
  beforeCall(step, method),
  ...barriers.map((barrier) => atStatement(step, method, barrier)),
  afterReply(step, method),
];

/**
 * The directory of the new database exists, and its files are being copied. The reply cannot overtake the
 * news of it.
 */
export const asCopyBegins = (step: string): Moment => ({
  name: `during ${step}, as the copy begins`,
  landings: [{ method: 'branch.clone', ...UNANSWERED }],
  reach: async ({ proxy, begin, databaseBegun }) => {
    const begun = databaseBegun();
    void proxy.hold({ method: 'branch.clone', side: 'reply' });
    void begin();
    await begun;
  },
});

/**
 * @param ms after the new directory exists. A small copy may be finished by then; the gateway does not know
 */
export const duringCopy = (step: string, ms: number): Moment => ({
  name: `during ${step}, ${ms} ms into the copy`,
  landings: [{ method: 'branch.clone', ...UNANSWERED }],
  reach: async ({ proxy, begin, databaseBegun }) => {
    const begun = databaseBegun();
    void proxy.hold({ method: 'branch.clone', side: 'reply' });
    void begin();
    await begun;
    await sleep(ms);
  },
});

/** @param ms after the gateway has got the last reply, and records the end of the job */
export const soonAfterReply = (step: string, method: Method, ms: number): Moment => ({
  name: `during ${step}`,
  landings: [{ method, ...ANSWERED }],
  reach: async ({ proxy, begin }) => {
    const reply = proxy.watch({ method, side: 'reply' });
    void begin();
    await reply;
    await sleep(ms);
  },
});

/** Everything is recorded. @param method the last call of the job */
export const afterEnd = (step: string, method: Method): Moment => ({
  name: `after ${step}`,
  landings: [{ method, ...ANSWERED }],
  reach: async ({ begin, jobsEnded }) => {
    await begin();
    await jobsEnded();
  },
});
