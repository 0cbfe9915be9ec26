import { currentTraceId } from './trace.ts';

type Level = 'info' | 'warning' | 'error';

/** The levels of events that an operator has to look at; every other event is `info`. */
const LEVELS: Record<string, Level> = {
  'access.not_applied': 'warning',
  'host.another_cluster': 'error',
  'host.records_went_back': 'error',
  'inventory_outdated.flood': 'warning',
  'inventory_outdated.lost': 'warning',
  'inventory_outdated.malformed': 'warning',
  'job.attempt_failed': 'warning',
  'keys.unavailable': 'error',
  'link.refused': 'warning',
  'machine.use_not_recorded': 'warning',
  'mail.given_up': 'error',
  'mail.not_sent': 'warning',
  'measurement.flood': 'warning',
  'measurement.lost': 'warning',
  'measurement.malformed': 'warning',
  'network_list.not_read': 'warning',
  'project.not_looked_after': 'warning',
  'reconcile.branch_lost': 'error',
  'reconcile.failed': 'warning',
  'reconcile.snapshot_lost': 'error',
  'reconcile.strange_snapshot': 'warning',
  'reconcile.stranger': 'warning',
  'reconcile.unresolved': 'warning',
  'snapshot.not_scheduled': 'warning',
  'source.not_decrypted': 'warning',
  'webhook.not_sent': 'warning',
};

const INTERNAL = 500;
const UNAVAILABLE = 503;

/** A request fails by the service's own fault from 500 on; 503 passes without a change. */
function levelOf(event: string, { status }: Record<string, unknown>): Level {
  if (event !== 'request' || typeof status !== 'number' || status < INTERNAL) return LEVELS[event] ?? 'info';
  return status === UNAVAILABLE ? 'warning' : 'error';
}

/** Logs an event whose fields specification 6 lists, so it has no others. */
export const logSpecifiedEvent = (event: string, fields: Record<string, unknown>): void =>
  console.log(JSON.stringify({ event, ...fields }));

/** Logs one JSON object per line. Callers must not pass tokens, passwords or request bodies. */
export function logEvent(event: string, fields: Record<string, unknown>): void {
  const traceId = currentTraceId();
  const level = levelOf(event, fields);
  console.log(JSON.stringify({ event, level, ...fields, ...(traceId && { trace_id: traceId }) }));
}
