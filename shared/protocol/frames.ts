import { z } from 'zod';
import { HOST_FAILURES, type HostFailureCode } from './host-failures.ts';
import { NOTIFICATIONS, type Notification } from './notifications.ts';

/** The frames of a link once it is up: JSON-RPC 2.0, the edge asks, the agent replies and notifies. No batches. */

/** Chosen at random by the edge, so that a late reply never meets a call made after a restart. */
const CallId = z.uuid();

export const RequestFrame = z.strictObject({
  jsonrpc: z.literal('2.0'),
  id: CallId,
  method: z.string().max(64),
  /** By-name only; what is in it is for the method's own schema to judge. */
  params: z.record(z.string(), z.unknown()),
});
export type RequestFrame = z.output<typeof RequestFrame>;

const ResultFrame = z.strictObject({
  jsonrpc: z.literal('2.0'),
  id: CallId,
  result: z.record(z.string(), z.unknown()),
});

/** Characters; longer messages are cut by the agent. */
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
    }),
  }),
});

export const ReplyFrame = z.union([ResultFrame, ErrorFrame]);
export type ReplyFrame = z.output<typeof ReplyFrame>;

/** From the agent alone. Which parameters are right is for the method's own schema to judge. */
export const NotificationFrame = z.strictObject({
  jsonrpc: z.literal('2.0'),
  method: z.enum(Object.keys(NOTIFICATIONS) as Notification[]),
  params: z.record(z.string(), z.unknown()),
});
export type NotificationFrame = z.output<typeof NotificationFrame>;

/** Error codes of JSON-RPC 2.0 section 5.1. `data.code` says what happened; these are for generic tools. */
export const RPC_ERRORS = { methodNotFound: -32601, invalidParams: -32602, operationFailed: -32000 } as const;

/** What the agent sends as a beat and the edge's runtime answers without waking the object. Not JSON, so never a frame. */
export const HEARTBEAT = { request: 'beat?', response: 'beat!' } as const;
