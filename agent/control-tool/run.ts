import { setTimeout as sleep } from 'node:timers/promises';
import { Command } from 'commander';
import { AttemptWatch } from '../attempts/watch-attempts.ts';
import { BlockReports } from '../blocks/report-blocks.ts';
import { runFilterLoop } from '../firewall/packet-filter.ts';
import { GuardWatch } from '../guard/watch-guards.ts';
import { openHost } from '../host/host.ts';
import type { AgentLink } from '../link/agent-link.ts';
import { readIdentity } from '../link/identity.ts';
import { runLink } from '../link/run-link.ts';
import { runLogFolderLoop } from '../logs/postgres-log.ts';
import { ServerWatch } from '../maintenance/recover.ts';
import { DiskUsage } from '../measurement/disk-usage.ts';
import { runMeasurementLoop } from '../measurement/meter.ts';
import { watchBlockedProjects } from '../measurement/sizes.ts';
import { registerGauges } from '../metrics/gauges.ts';
import { serveMetrics } from '../metrics/metrics.ts';
import { performOperation } from '../operations/handlers.ts';
import { readMemory } from '../pooler/admin-console.ts';
import { PoolerRestarts } from '../pooler/restart.ts';
import { runPrivilegeLoop } from '../privileges/repair-privileges.ts';
import { TroubleLog } from '../process/log.ts';
import { progressOfJob } from '../process/progress.ts';
import { runRoomLoop } from '../snapshots/make-room.ts';
import { runSeparationLoop } from '../snapshots/separate-snapshots.ts';
import { Drain, drainAt } from '../upgrade/drain.ts';
import type { Trial } from '../upgrade/trial.ts';
import { readVolumes } from '../volumes/volumes.ts';
import { UsageError } from './exit-codes.ts';
import { readShellSettings } from './with-host.ts';

/** Time for operations and loops in progress when the agent is signalled to stop. */
const FINISH_WITHIN_MS = 8_000;
/** Before an upgrade it is short, because the gateway has abandoned the calls and the host is away meanwhile. */
const FINISH_BEFORE_UPGRADE_MS = 1_000;
/** As long as the edge waits for a clone. */
export const CLONES_END_WITHIN_MS = 900_000;

/** @param trial of this program; null if another command than `run` stands first on the command line */
export const runCommand = (trial: Trial | null) =>
  new Command('run')
    .description('Run the agent: recover the host, then serve the gateway until SIGTERM')
    .action(() => runAgent(trial));

async function runAgent(trial: Trial | null): Promise<void> {
  const settings = readShellSettings();
  if (!settings.GATEWAY_URL)
    throw new UsageError('GATEWAY_URL is missing: set it to the address of the gateway');
  const identity = await readIdentity(settings.STATE_DIR);
  if (!identity) throw new UsageError('this host is not enrolled: run `enrol` first');

  const stop = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => stop.abort());
  const { signal } = stop;
  const drain = new Drain();
  let finishWithin = FINISH_WITHIN_MS;
  drainAt('SIGUSR2', async () => {
    log('agent.draining');
    finishWithin = FINISH_BEFORE_UPGRADE_MS;
    await drain.begin(CLONES_END_WITHIN_MS);
    stop.abort();
  });
  const trialEnd = trial?.isPending
    ? setTimeout(() => {
        trial.fail();
        stop.abort(new TrialFailed());
      }, settings.UPGRADE_TRIAL_SECONDS * 1000)
    : undefined;
  const host = await openHost(settings, log);
  const running = new Set<Promise<unknown>>();
  log('agent.started', {
    host_id: identity.host_id,
    clone_method: host.cloneMethod,
    guards: settings.GUARDS,
  });

  const diskUsage = new DiskUsage(host);
  host.largestSource = () => diskUsage.largest();
  const attempts = new AttemptWatch(host, log);
  const watch = new ServerWatch(host, log);
  await watch.poll();
  let link: AgentLink | null = null;
  const metricTroubles = new TroubleLog(log);
  registerGauges(
    host.metrics.registry,
    {
      cloneMethod: host.cloneMethod,
      isLinked: () => link?.isUp ?? false,
      largestSource: host.largestSource,
      unreadLogs: () => attempts.unread(),
      volumes: () => readVolumes(settings),
      poolerMemory: () => readMemory(settings),
    },
    (name, error) => metricTroubles.report('metrics.unread', name, error, { name }),
  );
  const begun = Promise.withResolvers<void>();
  const loops = Promise.all([
    watch.runLoop(signal),
    attempts.run(signal),
    runFilterLoop(host, signal),
    runLogFolderLoop(settings, log, signal),
    new PoolerRestarts(host).run(signal),
    // The measurement distinguishes its sessions from clients' by the log, which it reads from its own start.
    begun.promise.then(() => runPrivilegeLoop(host, signal)),
    runMeasurementLoop({
      settings,
      log,
      report: (measurement) => {
        link?.notify('measurement', { ...measurement, ...diskUsage.of(measurement.project_id) });
      },
      deadTuples: host.deadTuples,
      onBegun: begun.resolve,
      signal,
    }),
    diskUsage.runLoop(signal),
    runRoomLoop(host, () => link?.notify('inventory_outdated', {}), signal),
    runSeparationLoop(host, signal),
    host.lockSampler.run(signal),
    watchBlockedProjects({ settings, log, report: (sizes) => link?.notify('sizes', sizes), signal }),
    new BlockReports(host, (blocks) => link?.notify('blocks', blocks)).run(log, signal),
    ...(settings.METRICS_PORT > 0
      ? [serveMetrics({ registry: host.metrics.registry, port: settings.METRICS_PORT, log, signal })]
      : []),
    ...(settings.GUARDS === 'on' ? [new GuardWatch(host, log).run(signal)] : []),
  ]);
  await runLink({
    gatewayUrl: settings.GATEWAY_URL,
    identity,
    signal,
    log,
    onLinked: (linked) => {
      link = linked;
      clearTimeout(trialEnd);
      trial?.setLinked(true);
      linked.ended.then(() => trial?.setLinked(false));
    },
    handle: (method, params) =>
      drain.run(method, () => {
        const onProgress = progressOfJob(params, (progress) => link?.notify('progress', progress));
        const operation = host.metrics.countOperation(
          method,
          performOperation(host, method, params, onProgress),
        );
        running.add(operation);
        const forget = () => running.delete(operation);
        operation.then(forget, forget);
        return operation;
      }),
  });
  // A loop may be in the middle of a long look at all branches.
  const finishing = Promise.all([loops, Promise.allSettled(running)]);
  await Promise.race([finishing, sleep(finishWithin)]);
  log('agent.stopped', { unfinished: running.size });
  if (signal.reason instanceof TrialFailed) throw signal.reason;
}

/** The service manager starts the agent again, which then runs the program before this one. */
class TrialFailed extends Error {
  override readonly name = 'TrialFailed';
  override readonly message = 'this program has not linked in time: the one before it runs at the next start';
}

/** Writes one JSON object per line, for the journal. */
function log(event: string, fields: Record<string, unknown> = {}) {
  process.stdout.write(`${JSON.stringify({ at: new Date().toISOString(), event, ...fields })}\n`);
}
