import { setTimeout as sleep } from 'node:timers/promises';
import { Command } from 'commander';
import type { ProjectMeasurement } from '../../shared/measurement.ts';
import { LoginWatch } from '../access/watch-logins.ts';
import { AttemptWatch } from '../attempts/watch-attempts.ts';
import { BlockReports } from '../blocks/report-blocks.ts';
import { LockForecast } from '../changes/forecast.ts';
import { removeLeftDumps } from '../dump/pg-dump.ts';
import { runFilterLoop } from '../firewall/packet-filter.ts';
import { GuardWatch } from '../guard/watch-guards.ts';
import { type Host, openHost } from '../host/host.ts';
import type { AgentLink } from '../link/agent-link.ts';
import { readIdentity } from '../link/identity.ts';
import { runLink } from '../link/run-link.ts';
import { runLogFolderLoop } from '../logs/postgres-log.ts';
import { readUnarchived } from '../maintenance/checks.ts';
import { readCertificateEnd } from '../maintenance/examine.ts';
import { ServerWatch } from '../maintenance/recover.ts';
import { runUpkeepLoop } from '../maintenance/upkeep.ts';
import { runMeasurementLoop } from '../measurement/meter.ts';
import { watchBlockedProjects } from '../measurement/sizes.ts';
import { registerGauges } from '../metrics/gauges.ts';
import { serveMetrics } from '../metrics/metrics.ts';
import { runMoverLoop } from '../moves/mover-login.ts';
import { performOperation } from '../operations/handlers.ts';
import { readDrillState, runDrills } from '../past/drills.ts';
import { removeLeftRecoveries } from '../past/recover.ts';
import { readMemory } from '../pooler/admin-console.ts';
import { PoolerRestarts } from '../pooler/restart.ts';
import { readOutdatedCollations } from '../postgres/collations.ts';
import { readOldestIds } from '../postgres/oldest-ids.ts';
import { runPrivilegeLoop } from '../privileges/repair-privileges.ts';
import { TroubleLog } from '../process/log.ts';
import { type Loop, LoopFailed, runLoops } from '../process/loops.ts';
import { progressOfJob } from '../process/progress.ts';
import { runRoomLoop } from '../snapshots/make-room.ts';
import { runSeparationLoop } from '../snapshots/separate-snapshots.ts';
import { runSpareLoop } from '../snapshots/spares.ts';
import { runStandingLoop } from '../snapshots/standing-snapshots.ts';
import { SqlSockets } from '../sql/sockets.ts';
import { watchLease } from '../standby/primary-lease.ts';
import { FollowWatch } from '../transfer/watch-followed.ts';
import { Drain, drainAt } from '../upgrade/drain.ts';
import type { Trial } from '../upgrade/trial.ts';
import { readVolumes } from '../volumes/volumes.ts';
import { UsageError } from './exit-codes.ts';
import { printJson } from './terminal.ts';
import { readShellSettings } from './with-host.ts';

/** Time for operations and loops in progress when the agent is signalled to stop. */
const FINISH_WITHIN_MS = 8_000;
/**
 * Before an upgrade it is short, because the gateway has abandoned the calls and the host is away meanwhile.
 */
const FINISH_BEFORE_UPGRADE_MS = 1_000;
/** Time for the operations of a host that is closed for its standby. */
const SETTLE_WITHIN_MS = 10_000;
const REPLY_WITHIN_MS = 200;
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
  await removeLeftDumps(settings);
  await removeLeftRecoveries(settings);
  const host = await openHost(settings, log);
  const running = new Set<Promise<unknown>>();
  /** Those that change the role, and wait for the others. */
  const ofMember = new Set<Promise<unknown>>();
  log('agent.started', {
    host_id: identity.host_id,
    ...(host.member.role !== null && { role: host.member.role }),
    clone_method: host.cloneMethod,
    guards: settings.GUARDS,
  });

  const watches: Watches = {
    attempts: new AttemptWatch(host, log),
    servers: new ServerWatch(host, log),
  };
  let link: AgentLink | null = null;
  const loops: Promise<unknown>[] = [];
  const serve = async () => {
    await watches.servers.poll();
    const serving = loopsOf(host, watches, (method, params) => link?.notify(method, params));
    loops.push(runLoops(serving, stop));
  };
  host.member.attach({
    settle: async () => {
      const ended = Promise.allSettled([...running].filter((operation) => !ofMember.has(operation)));
      return Promise.race([ended.then(() => true), sleep(SETTLE_WITHIN_MS, false, { ref: false })]);
    },
    serve,
    // The reply to the gateway goes first.
    fenced: () => setTimeout(() => stop.abort(new HostFenced()), REPLY_WITHIN_MS),
  });
  serveGauges(host, watches, () => link?.isUp ?? false);
  loops.push(runLoops(loopsOfMember(host), stop));
  if (host.member.isPrimary) await serve();
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
        if (method === 'member.apply') ofMember.add(operation);
        const forget = () => {
          running.delete(operation);
          ofMember.delete(operation);
        };
        operation.then(forget, forget);
        return operation;
      }),
  });
  // A loop may be in the middle of a long look at all branches.
  const finishing = Promise.all([...loops, Promise.allSettled(running)]);
  await Promise.race([finishing, sleep(finishWithin)]);
  log('agent.stopped', { unfinished: running.size });
  // The service manager starts the agent again.
  if (ENDS_WITH_FAILURE.some((reason) => signal.reason instanceof reason)) throw signal.reason;
}

/** What every member does. One that serves no clients follows its primary, or waits for what the gateway says. */
const loopsOfMember = ({ settings, metrics, member }: Host): Record<string, Loop> => ({
  'log folder': (signal) => runLogFolderLoop(settings, log, signal),
  // Before the recovery, which waits for PostgreSQL, which waits for a guard.
  lease: (signal) => watchLease(settings, signal),
  ...(!member.isPrimary && {
    member: async (signal) => {
      await member.resume().catch((error) => log('member.not_resumed', { reason: String(error) }));
      await member.run(signal);
    },
  }),
  ...(settings.METRICS_PORT > 0 && {
    metrics: (signal) =>
      serveMetrics({ registry: metrics.registry, port: settings.METRICS_PORT, log, signal }),
  }),
});

/** What the loops share with the metrics. */
interface Watches {
  attempts: AttemptWatch;
  servers: ServerWatch;
}

/** @param notify sends to the gateway, if it is linked */
function loopsOf(
  host: Host,
  { attempts, servers }: Watches,
  notify: AgentLink['notify'],
): Record<string, Loop> {
  const { settings, sizes, deadTuples, lags, diskUsage } = host;
  const { promise: hasBegun, resolve: onBegun } = Promise.withResolvers<void>();
  const blocks = new BlockReports(host, (report) => notify('blocks', report));
  const measured = (measurement: ProjectMeasurement) =>
    notify('measurement', { ...measurement, ...diskUsage.of(measurement.project_id) });
  return {
    recovery: (signal) => servers.run(signal),
    upkeep: (signal) => runUpkeepLoop(host, signal),
    attempts: (signal) => attempts.run(signal),
    'packet filter': (signal) => runFilterLoop(host, signal),
    'restarts of the pooler': (signal) => new PoolerRestarts(host).run(signal),
    measurement: (signal) =>
      runMeasurementLoop({ settings, log, report: measured, sizes, deadTuples, lags, onBegun, signal }),
    // The measurement distinguishes its sessions from clients' by the log, which it reads from its own start.
    privileges: (signal) => hasBegun.then(() => runPrivilegeLoop(host, signal)),
    'disk usage': (signal) => diskUsage.run(signal),
    past: (signal) =>
      host.past.run(() => {
        host.known.outdate();
        notify('inventory_outdated', {});
      }, signal),
    'drills of recoveries': (signal) => runDrills(host, (report) => notify('drill', report), signal),
    room: (signal) => runRoomLoop(host, () => notify('inventory_outdated', {}), signal),
    'copies of snapshots': (signal) => runSeparationLoop(host, signal),
    spares: (signal) => runSpareLoop(host, signal),
    standing: (signal) => runStandingLoop(host, signal),
    'locks of rehearsals': (signal) => host.lockSampler.run(signal),
    'locks of main': (signal) => new LockForecast(host.postgres, log).run(signal),
    'clients of SQL over HTTP': (signal) => host.sql.clients.watch(host, signal),
    'SQL over WebSocket': (signal) => new SqlSockets(host, attempts).run(signal),
    logins: (signal) => new LoginWatch(host, log).run(signal),
    'blocked projects': (signal) =>
      watchBlockedProjects({ settings, sizes, log, report: (found) => notify('sizes', found), signal }),
    'reports of blocks': (signal) => blocks.run(log, signal),
    following: (signal) => new FollowWatch(host, (report) => notify('follow', report)).run(signal),
    'logins of moves': (signal) => runMoverLoop(host, signal),
    'synchronous commits': (signal) =>
      host.member.runSynchronous(signal, () => notify('inventory_outdated', {})),
    ...(settings.GUARDS === 'on' && { watchdogs: (signal) => new GuardWatch(host, log).run(signal) }),
  };
}

function serveGauges(host: Host, { attempts }: Watches, isLinked: () => boolean): void {
  const { settings, metrics, cloneMethod, diskUsage, spares, lags, member, past } = host;
  const troubles = new TroubleLog(log);
  registerGauges(
    metrics.registry,
    {
      cloneMethod,
      isLinked,
      largestSource: () => diskUsage.largest(),
      spares,
      lags,
      member,
      past: () => past.state(),
      drills: () => readDrillState(host),
      unarchived: () => readUnarchived(host.postgres),
      unreadLogs: () => attempts.unread(),
      volumes: () => readVolumes(settings),
      poolerMemory: () => readMemory(settings),
      certificateEnd: () => readCertificateEnd(host),
      outdatedCollations: () => readOutdatedCollations(host.postgres),
      oldestIds: () => readOldestIds(host.postgres),
    },
    (name, error) => troubles.report('metrics.unread', name, error, { name }),
  );
}

/** The service manager starts the agent again, which then runs the program before this one. */
class TrialFailed extends Error {
  override readonly name = 'TrialFailed';
  override readonly message = 'this program has not linked in time: the one before it runs at the next start';
}

/** The service manager starts the agent again, which then does no work but for its role. */
class HostFenced extends Error {
  override readonly name = 'HostFenced';
  override readonly message = 'another host has taken the place of this one';
}

const ENDS_WITH_FAILURE = [TrialFailed, LoopFailed, HostFenced];

/** Writes one JSON object per line, for the journal. */
function log(event: string, fields: Record<string, unknown> = {}) {
  printJson({ at: new Date().toISOString(), event, ...fields });
}
