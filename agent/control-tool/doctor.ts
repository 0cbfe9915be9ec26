import { existsSync } from 'node:fs';
import { Command } from 'commander';
import { closeHost, openHost } from '../host/host.ts';
import { readIdentity } from '../link/identity.ts';
import type { Finding } from '../maintenance/checks.ts';
import { examine } from '../maintenance/examine.ts';
import type { AgentSettings } from '../process/settings.ts';
import { installedProgram, sha256OfFile } from '../upgrade/program-file.ts';
import { hasFailed } from '../upgrade/trial.ts';
import { explain, ProblemsFound } from './exit-codes.ts';
import { print } from './terminal.ts';
import { readShellSettings } from './with-host.ts';

const problem = (sentence: string): Finding => ({ severity: 'problem', sentence });

/** Checks as much as possible, even when a server is down, and says what to do. */
export const doctorCommand = () =>
  new Command('doctor')
    .description('Check settings, enrolment and both servers, and suggest corrections')
    .action(async (_options, command: Command) => {
      const settings = readShellSettings();
      const [enrolment, servers] = await Promise.all([examineEnrolment(settings), examineServers(settings)]);
      const findings = [...enrolment, ...servers.findings];
      const lines = findings.map(({ severity, sentence }) => `${severity}: ${sentence}`);
      const report = findings.length === 0 ? ['No problems found.'] : lines;
      print(command, { ...servers.versions, findings }, [
        ...Object.entries(servers.versions).map(([name, version]) => `${name}: ${version}`),
        ...report,
      ]);
      if (findings.some(({ severity }) => severity === 'problem')) throw new ProblemsFound();
    });

async function examineEnrolment({ STATE_DIR, GATEWAY_URL }: AgentSettings): Promise<Finding[]> {
  const findings: Finding[] = [];
  if (!GATEWAY_URL) findings.push(problem('GATEWAY_URL is missing: set it to the address of the gateway.'));
  try {
    if (!(await readIdentity(STATE_DIR))) findings.push(problem('This host is not enrolled: run `enrol`.'));
  } catch (error) {
    findings.push(problem(`${explain(error)}.`));
  }
  if (hasFailed(installedProgram(), STATE_DIR))
    findings.push(
      problem(
        'The installed program did not link, so the one before it runs: repeat `upgrade`, with another release.',
      ),
    );
  if (isOutdated(installedProgram()))
    findings.push({
      severity: 'advice',
      sentence: `The package has another release of the agent than the one that runs: run \`branchgate-agent upgrade ${PACKED_PROGRAM} --sha256 @${PACKED_PROGRAM}.sha256\`.`,
    });
  return findings;
}

/** The program of the Debian package, which its installation copies. */
const PACKED_PROGRAM = '/usr/lib/branchgate-agent/branchgate-agent.mjs';

/** The installation of a package leaves the release before it if the new one does not link. */
const isOutdated = (program: string): boolean =>
  existsSync(PACKED_PROGRAM) && sha256OfFile(PACKED_PROGRAM) !== sha256OfFile(program);

async function examineServers(settings: AgentSettings) {
  const host = await openHost(settings);
  try {
    const { findings, postgresVersion, poolerVersion, backup } = await examine(host, { eachDatabase: true });
    return {
      versions: {
        postgres: postgresVersion,
        pooler: poolerVersion,
        clone_method: host.cloneMethod,
        last_backup: backup.lastBackupAt?.toISOString() ?? 'none',
        last_archived_wal: backup.lastArchivedAt?.toISOString() ?? 'none',
      },
      findings,
    };
  } catch (error) {
    return { versions: {}, findings: [problem(`${explain(error)}.`)] };
  } finally {
    await closeHost(host);
  }
}
