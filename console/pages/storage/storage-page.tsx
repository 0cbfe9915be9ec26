import { useQuery } from '@tanstack/react-query';
import { createFileRoute, Link } from '@tanstack/react-router';
import { bytes, compact, duration, plural, relative, secondsSince } from '../../../shared/format.ts';
import { BranchName } from '../../components/branch.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { Loaded, Note } from '../../components/feedback.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { Page } from '../../components/page.tsx';
import { useNow } from '../../components/time.tsx';
import { useLiveMeasurements } from '../../data/live.ts';
import { branchesQuery, type Usage, usageQuery } from '../../data/resources.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { STORAGE_STATES, TEXT } from '../../strings/common.ts';
import './storage.css';

const COLUMNS = ['Branch', 'Holds', 'Of the quota', 'Own on disk', 'Shared on disk', 'If deleted'] as const;
const PLAIN_COLUMNS = ['Branch', 'Holds', 'Of the quota', 'If deleted'] as const;

/** The bar reaches to twice the quota, where the databases close. */
const CLOSING_RATIO = 2;
const MARKS = [
  [0.8, 'warning'],
  [1, 'writes stop'],
  [CLOSING_RATIO, 'databases close'],
] as const;

function QuotaBar({ usage }: { usage: Usage }) {
  const scale = usage.storage_limit_bytes * CLOSING_RATIO;
  const share = (size: number) => `${Math.min(100, (100 * size) / scale)}%`;
  return (
    <figure className="quota">
      <div className="quota-bar" data-state={usage.storage_state}>
        {usage.branches.map((branch, index) => (
          <i
            key={branch.branch_id}
            data-shade={index % 3}
            style={{ width: share(branch.database_size_bytes) }}
            title={`${branch.branch_name}: ${bytes(branch.database_size_bytes)}`}
          />
        ))}
      </div>
      <ol className="quota-marks">
        {MARKS.map(([ratio, meaning]) => (
          <li
            key={meaning}
            style={{ left: `${(100 * ratio) / CLOSING_RATIO}%` }}
            data-at-end={ratio === CLOSING_RATIO}
          >
            <b>{bytes(usage.storage_limit_bytes * ratio)}</b>
            <span>{meaning}</span>
          </li>
        ))}
      </ol>
    </figure>
  );
}

function Freshness({ usage }: { usage: Usage }) {
  const now = useNow();
  if (usage.observed_at === null && usage.storage_used_bytes === 0)
    return <Note>{TEXT.states.measuring}</Note>;
  if (!usage.stale || usage.observed_at === null) return null;
  return <Note tone="warn">{TEXT.states.stale(duration(secondsSince(usage.observed_at, now)))}</Note>;
}

/** From when the sizes are. The disk is measured less often. */
function AsOf({ usage }: { usage: Usage }) {
  const now = useNow();
  const { observed_at: sizes, disk_measured_at: disk } = usage;
  if (sizes === null) return null;
  return (
    <p className="small quiet">
      Sizes as of <time dateTime={sizes}>{relative(sizes, now)}</time>
      {disk !== null && (
        <>
          , what branches own and share on the disk as of <time dateTime={disk}>{relative(disk, now)}</time>
        </>
      )}
      .
    </p>
  );
}

const measured = (value: number | null) => (value === null ? '–' : bytes(value));

/** Whether the file system of the host tells what databases share. */
const isMeasured = (all: readonly { own_bytes: number | null }[]) =>
  all.some(({ own_bytes }) => own_bytes !== null);

const ownOf = (all: readonly { own_bytes: number | null }[]) =>
  bytes(all.reduce((total, { own_bytes }) => total + (own_bytes ?? 0), 0));

export const Route = createFileRoute('/_inside/projects/$projectId/storage')({ component: StoragePage });

function StoragePage() {
  const { projectId } = Route.useParams();
  const usage = useQuery(usageQuery(projectId));
  useLiveMeasurements(projectId);
  const branches = useQuery(branchesQuery(projectId)).data ?? [];
  return (
    <Page
      title={TEXT.nav.storage}
      about="All branches of the project share one quota. Only active branches count."
    >
      <Loaded query={usage}>
        {(data) => (
          <>
            <Freshness usage={data} />
            {data.storage_state !== 'normal' && (
              <Note tone={data.storage_state === 'warning' ? 'warn' : 'bad'}>
                {STORAGE_STATES[data.storage_state]}
              </Note>
            )}
            <section className="card padded stack" aria-label="Storage quota">
              <p className="quota-total">
                <b>{bytes(data.storage_used_bytes)}</b> of {bytes(data.storage_limit_bytes)}
                <span className="quiet">{data.usage_percent} %</span>
              </p>
              <QuotaBar usage={data} />
              <p className="quiet">
                {compact(data.files_used)} of {compact(data.files_limit)} files of tables and indexes
              </p>
            </section>
            <div className="card">
              <ListTable
                columns={isMeasured(data.branches) ? COLUMNS : PLAIN_COLUMNS}
                numbers={['Holds', 'Of the quota', 'Own on disk', 'Shared on disk']}
                hasActions={false}
              >
                {[...data.branches]
                  .sort((one, other) => other.database_size_bytes - one.database_size_bytes)
                  .map(({ branch_id, branch_name, database_size_bytes: size, own_bytes, shared_bytes }) => {
                    const isDefault = branches.find(({ id }) => id === branch_id)?.is_default ?? false;
                    return (
                      <tr key={branch_id}>
                        <td>
                          <Link
                            to="/projects/$projectId/branches/$branch/monitoring"
                            params={{ projectId, branch: branch_name }}
                          >
                            <BranchName name={branch_name} />
                          </Link>
                        </td>
                        <td className="number">{bytes(size)}</td>
                        <td className="number">{((100 * size) / data.storage_limit_bytes).toFixed(1)} %</td>
                        {isMeasured(data.branches) && (
                          <>
                            <td className="number">{measured(own_bytes)}</td>

                            <td className="number">{measured(shared_bytes)}</td>
                          </>
                        )}
                        <td className="quiet">
                          {isDefault ? 'never deleted' : `frees ${bytes(size)} of the quota`}
                        </td>
                      </tr>
                    );
                  })}
              </ListTable>
            </div>
            <AsOf usage={data} />
            {data.observed_at !== null && !isMeasured([...data.branches, ...data.snapshots]) && (
              <p className="small quiet">
                The file system of the database host does not report what branches share on the disk.
              </p>
            )}
            {data.snapshots.length > 0 && (
              <p className="quiet">
                <Link to="/projects/$projectId/snapshots" params={{ projectId }}>
                  {plural(data.snapshots.length, 'kept snapshot')}
                </Link>{' '}
                {isMeasured(data.snapshots) && `with ${ownOf(data.snapshots)} of their own on the disk `}
                {data.snapshots.length === 1 ? 'does' : 'do'} not count against the quota.
              </p>
            )}
          </>
        )}
      </Loaded>
      <CommandLine command={COMMANDS.usage} />
    </Page>
  );
}
