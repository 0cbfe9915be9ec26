import type { Env } from '../env.ts';

/** The object that delivers to this webhook. */
export const webhookSenderOf = ({ WEBHOOK_SENDER }: Env, webhookId: string) =>
  WEBHOOK_SENDER.get(WEBHOOK_SENDER.idFromName(webhookId));
