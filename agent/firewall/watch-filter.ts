import { setTimeout as sleep } from 'node:timers/promises';
import type { Host } from '../host.ts';
import { TroubleLog } from '../trouble-log.ts';

const CHECK_EVERY_MS = 5_000;

/** Publishes the rules to the packet filter again when someone else has changed it or them. Never throws. */
export async function runFilterLoop({ settings, rules, log }: Host, signal: AbortSignal): Promise<void> {
  if (settings.FIREWALL === 'off') return;
  const troubles = new TroubleLog(log);
  while (!signal.aborted) {
    await rules.restoreFilter().then(
      () => troubles.clearAll() && log('firewall.published'),
      (error) => troubles.report('firewall.unpublished', 'table', error),
    );
    await sleep(CHECK_EVERY_MS, undefined, { signal }).catch(() => {});
  }
}
