import { useInfiniteQuery, useQuery } from '@tanstack/react-query';
import { createFileRoute, Link } from '@tanstack/react-router';
import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { ACTOR_TYPES, type ActorType } from '../../../shared/actor-types.ts';
import { AUDIT_NAMES } from '../../../shared/audit-names.ts';
import { dateTime } from '../../../shared/format.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { Empty, ErrorNote, Loading } from '../../components/feedback.tsx';
import { Field, SelectField } from '../../components/field.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { Page } from '../../components/page.tsx';
import { saveFile } from '../../data/csv.ts';
import { api, gateway } from '../../data/gateway.ts';
import {
  type AuditEvent,
  apiKeysQuery,
  branchesQuery,
  everyRecord,
  membersQuery,
  projectsQuery,
  projectWord,
} from '../../data/resources.ts';
import { texts } from '../../data/search.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { fileOf } from './export.ts';
import './audit.css';

const ACTORS = {
  user: 'Person',
  key: 'API key',
  workload: 'Workload',
  grant: 'Signed-in agent',
  service: 'Service',
} as Record<string, string>;

/** A person, a trust or a grant (UUID), or a key. */
const ID = /^(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[a-z2-7]{16})$/;

export interface ActorChoice {
  type: ActorType | undefined;
  id: string | undefined;
}

const actorTypeOf = (text: string | undefined): ActorType | undefined =>
  ACTOR_TYPES.find((type) => type === text);

interface Props {
  chosen: ActorChoice;
  onChange: (change: { actor_type: string } | { actor: string }) => void;
}

/** Chooses actors by their type, and one by its e-mail address, the name of its key, or its ID. */
function ActorFilter({ chosen, onChange }: Props) {
  const members = useQuery(membersQuery()).data ?? [];
  const keys = useQuery(apiKeysQuery()).data ?? [];
  const [typed, setTyped] = useState<string | null>(null);
  const known = [
    ...members.map(({ id, email }) => ({ id, label: email })),
    ...keys.map(({ id, name }) => ({ id, label: name })),
  ];
  const shown = typed ?? known.find(({ id }) => id === chosen.id)?.label ?? chosen.id ?? '';
  return (
    <>
      <SelectField
        label="Kind of actor"
        value={chosen.type ?? ''}
        onChange={({ target }) => onChange({ actor_type: target.value })}
      >
        <option value="">Every kind</option>
        {ACTOR_TYPES.map((type) => (
          <option key={type} value={type}>
            {ACTORS[type]}
          </option>
        ))}
      </SelectField>
      <Field
        label="Actor"
        list="audit-actors"
        placeholder="ada@example.com"
        value={shown}
        onChange={({ target }) => {
          const text = target.value;
          setTyped(text);
          const id = known.find(({ label }) => label === text)?.id ?? (ID.test(text) ? text : undefined);
          if (text === '' || id !== undefined) onChange({ actor: id ?? '' });
        }}
      />
      <datalist id="audit-actors">
        {known.map(({ id, label }) => (
          <option key={id} value={label} />
        ))}
      </datalist>
    </>
  );
}

const PAGE = 50;

const Actor = ({ event }: { event: AuditEvent }) => (
  <>
    <span className={`badge plain ${event.actor_type === 'user' ? '' : 'accent'}`}>
      {ACTORS[event.actor_type ?? 'service']}
    </span>{' '}
    {event.actor_email ?? (event.actor_id !== null && <code className="small">{event.actor_id}</code>)}
  </>
);

/** What an event is about, by its name or ID: the branch, then the project. */
function Target({ event, project }: { event: AuditEvent; project: string | undefined }) {
  const { project_id: projectId, branch_id: branchId, metadata } = event;
  const branches = useQuery({ ...branchesQuery(projectId ?? ''), enabled: branchId !== null }).data ?? [];
  if (projectId === null) return <span className="quiet">–</span>;
  const branch = branches.find(({ id }) => id === branchId)?.branch_name;
  const gone = branchId === null ? undefined : String(metadata.branch_name ?? 'a deleted branch');
  return (
    <>
      {project === undefined ? (
        <span className="quiet">a deleted project</span>
      ) : (
        <Link to="/projects/$projectId" params={{ projectId }}>
          {project}
        </Link>
      )}
      {branch !== undefined ? (
        <>
          {' / '}
          <Link to="/projects/$projectId/branches/$branch/connect" params={{ projectId, branch }}>
            {branch}
          </Link>
        </>
      ) : (
        gone !== undefined && <span className="quiet"> / {gone}</span>
      )}
    </>
  );
}

function EventRow({ event, project }: { event: AuditEvent; project: string | undefined }) {
  const [isOpen, setOpen] = useState(false);
  const facts = [
    ['Project', project ?? event.project_id],
    ['Branch', event.branch_id],
    ['Actor ID', event.actor_id],
    ['Client', event.user_agent],
    ['Request ID', event.request_id],
  ] as const;
  return (
    <>
      <tr>
        <td className="quiet nowrap">{dateTime(event.created_at)}</td>
        <td>
          <button
            type="button"
            className="event-name"
            aria-expanded={isOpen}
            onClick={() => setOpen(!isOpen)}
          >
            {event.name}
          </button>
        </td>
        <td>
          <span className="in-text">
            <Target event={event} project={project} />
          </span>
        </td>
        <td>
          <Actor event={event} />
        </td>
        <td className="mono quiet">{event.ip ?? '–'}</td>
      </tr>
      {isOpen && (
        <tr className="event-details">
          <td colSpan={5}>
            <dl className="facts">
              {facts.map(
                ([label, value]) =>
                  value && (
                    <div key={label}>
                      <dt>{label}</dt>
                      <dd className="mono small">{value}</dd>
                    </div>
                  ),
              )}
            </dl>
            <pre>{JSON.stringify(event.metadata, null, 2)}</pre>
          </td>
        </tr>
      )}
    </>
  );
}

export const Route = createFileRoute('/_inside/audit')({
  validateSearch: texts('name', 'project', 'actor_type', 'actor'),
  component: AuditPage,
});

function AuditPage() {
  const search = Route.useSearch();
  const navigate = Route.useNavigate();
  const projects = useQuery(projectsQuery()).data ?? [];
  const [exportError, setExportError] = useState<unknown>(null);
  const actor = { type: actorTypeOf(search.actor_type), id: search.actor };
  const query = {
    ...(search.name !== undefined && { name: search.name as never }),
    ...(search.project !== undefined && { project_id: search.project }),
    ...(actor.type !== undefined && { actor_type: actor.type }),
    ...(actor.id !== undefined && { actor_id: actor.id }),
  };
  const events = useInfiniteQuery({
    queryKey: ['audit', query],
    queryFn: ({ pageParam, signal }) =>
      dataOf(
        api.GET('/api/v1/audit-events', {
          params: { query: { ...query, limit: PAGE, ...(pageParam !== null && { cursor: pageParam }) } },
          signal,
        }),
      ),
    initialPageParam: null as string | null,
    getNextPageParam: ({ next_cursor }) => next_cursor,
  });
  const all = events.data?.pages.flatMap((page) => page.audit_events) ?? [];
  const choose = (change: { name?: string; project?: string; actor_type?: string; actor?: string }) =>
    navigate({ search: (before) => ({ ...before, ...change }), replace: true });
  const save = async () => {
    setExportError(null);
    try {
      saveFile(
        'audit.csv',
        fileOf(await everyRecord(gateway.all('/api/v1/audit-events', { params: { query } }))),
      );
    } catch (error) {
      setExportError(error);
    }
  };
  return (
    <Page
      title={TEXT.nav.audit}
      about="Who did what in your tenant, and from where."
      actions={<Button onClick={save}>Export as CSV</Button>}
    >
      {exportError !== null && <ErrorNote error={exportError} />}
      <div className="card padded audit-filters">
        <Field
          label="Event"
          className="mono"
          list="audit-names"
          placeholder="branch.created"
          defaultValue={search.name}
          onChange={({ target }) => {
            const isKnown = AUDIT_NAMES.some((name) => name === target.value);
            if (target.value === '' || isKnown) choose({ name: target.value });
          }}
        />
        <datalist id="audit-names">
          {AUDIT_NAMES.map((name) => (
            <option key={name} value={name} />
          ))}
        </datalist>
        <SelectField
          label="Project"
          value={search.project ?? ''}
          onChange={({ target }) => choose({ project: target.value })}
        >
          <option value="">Every project</option>
          {projects.map(({ id, name }) => (
            <option key={id} value={id}>
              {name}
            </option>
          ))}
        </SelectField>
        <ActorFilter chosen={actor} onChange={choose} />
      </div>
      {events.isError && <ErrorNote error={events.error} onRetry={() => events.refetch()} />}
      {events.isPending && !events.isError && <Loading />}
      {events.data && (
        <div className="card">
          {all.length === 0 ? (
            <Empty icon="list" title="No events match" />
          ) : (
            <ListTable columns={['Time', 'Event', 'Target', 'Actor', 'Address']} hasActions={false}>
              {all.map((event) => (
                <EventRow
                  key={event.id}
                  event={event}
                  project={projects.find(({ id }) => id === event.project_id)?.name}
                />
              ))}
            </ListTable>
          )}
        </div>
      )}
      {events.hasNextPage && (
        <div>
          <Button busy={events.isFetchingNextPage} onClick={() => events.fetchNextPage()}>
            Load more
          </Button>
        </div>
      )}
      <CommandLine
        command={COMMANDS.audit({
          ...query,
          project: projectWord(projects, search.project ?? ''),
        })}
      />
    </Page>
  );
}
