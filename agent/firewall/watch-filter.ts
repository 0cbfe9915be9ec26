import type { Host } from '../host.ts';
import { repeat } from '../repeat.ts';
import { TroubleLog } from '../trouble-log.ts';

const CHECK_EVERY_MS = 5_000;

/** Publishes the rules to the packet filter again when someone else has changed it or them. Never throws. */
export async function runFilterLoop({ settings, rules, log }: Host, signal: AbortSignal): Promise<void> {
  if (settings.FIREWALL === 'off') return;
  const troubles = new TroubleLog(log);
  const check = () =>
    rules.restoreFilter().then(
      () => troubles.clearAll() && log('firewall.published'),
      (error) => troubles.report('firewall.unpublished', 'table', error),
    );
  await repeat(check, CHECK_EVERY_MS, signal);
}
