import { z } from 'zod';
import { HOST_FAILURES, type HostFailureCode } from './host-failures.ts';
import { NOTIFICATIONS, type Notification } from './notifications.ts';
import { TRACEPARENT } from './trace.ts';

/**
 * The frames of an established link: JSON-RPC 2.0 without batches. The edge calls; the agent replies and
 * notifies.
 */

/** Chosen at random by the edge, so that a late reply never matches a call made after a restart. */
const CallId = z.uuid();

export const RequestFrame = z.strictObject({
  jsonrpc: z.literal('2.0'),
  id: CallId,
  method: z.string().max(64),
  /** By name only. The method's own schema validates them. */
  params: z.record(z.string(), z.unknown()),
  /** Trace of the client's request that caused the call. */
  traceparent: z.string().regex(TRACEPARENT).optional(),
});
export type RequestFrame = z.output<typeof RequestFrame>;

const ResultFrame = z.strictObject({
  jsonrpc: z.literal('2.0'),
  id: CallId,
  result: z.record(z.string(), z.unknown()),
});

/** In characters; the agent cuts longer messages. */
export const ERROR_MESSAGE_LENGTH = 4096;

const ErrorFrame = z.strictObject({
  jsonrpc: z.literal('2.0'),
  id: CallId,
  error: z.strictObject({
    code: z.int(),
    message: z.string().max(ERROR_MESSAGE_LENGTH),
    data: z.strictObject({
      code: z.enum(Object.keys(HOST_FAILURES) as HostFailureCode[]),
      sqlstate: z
        .string()
        .regex(/^[0-9A-Z]{5}$/)
        .optional(),
      change: z.int().nonnegative().optional(),
      statement: z.int().nonnegative().optional(),
      path: z.string().max(64).optional(),
    }),
  }),
});

export const ReplyFrame = z.union([ResultFrame, ErrorFrame]);
export type ReplyFrame = z.output<typeof ReplyFrame>;

/** Sent by the agent only. The method's own schema validates the parameters. */
export const NotificationFrame = z.strictObject({
  jsonrpc: z.literal('2.0'),
  method: z.enum(Object.keys(NOTIFICATIONS) as Notification[]),
  params: z.record(z.string(), z.unknown()),
});
export type NotificationFrame = z.output<typeof NotificationFrame>;

/** Error codes of JSON-RPC 2.0 section 5.1, for generic tools. `data.code` has the specific failure. */
export const RPC_ERRORS = { methodNotFound: -32601, invalidParams: -32602, operationFailed: -32000 } as const;

/**
 * The agent's heartbeat, and the response that the edge's runtime sends without waking the object. Never a
 * frame.
 */
export const HEARTBEAT = { request: 'beat?', response: 'beat!' } as const;
