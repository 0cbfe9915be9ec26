import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { createFileRoute, Link } from '@tanstack/react-router';
import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { BranchName } from '../../components/branch.tsx';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { ActionDialog } from '../../components/dialog.tsx';
import { announce, Empty, ErrorNote, Loaded, Note } from '../../components/feedback.tsx';
import { Check, Choice } from '../../components/field.tsx';
import { Page } from '../../components/page.tsx';
import { api } from '../../data/gateway.ts';
import { type Branch, branchesQuery, inBranch, otherAddressQuery, rulesQuery } from '../../data/resources.ts';
import { texts } from '../../data/search.ts';
import { mayChange, sessionStore } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { Snippets } from './snippets-view.tsx';

const ROLE_HINTS = {
  default:
    'The pooled URL reads and writes rows; the direct URL is that of the owner, who can change the schema.',
  owner: 'Both URLs are those of the owner, who can change the schema.',
  read_only: 'Both URLs can only read.',
} as const;

interface ReachProps {
  projectId: string;
  branchId: string;
  /** The addresses of this computer, as networks, that no rule lets connect. */
  missing: readonly string[] | undefined;
  onChange: () => void;
}

/** Answers "can I connect from here?", and adds the rule that is missing. */
function Reach({ projectId, branchId, missing = [], onChange }: ReachProps) {
  const client = useQueryClient();
  const rule = useMutation({
    mutationFn: async () => {
      const statuses = [];
      for (const cidr of missing) {
        const request = api.POST('/api/v1/projects/{project_id}/network-rules', {
          params: { path: { project_id: projectId } },
          body: { cidr, branch_id: branchId, description: 'Added in the console' },
        });
        statuses.push((await dataOf(request)).status);
      }
      return statuses;
    },
    onSuccess: (statuses) => {
      const isApplied = statuses.every((status) => status === 'applied');
      announce(isApplied ? 'The rule is in effect.' : TEXT.states.rulePending);
      client.invalidateQueries({ queryKey: rulesQuery(projectId).queryKey });
      onChange();
    },
  });
  if (missing.length === 0) return <Note tone="good">You can connect from here.</Note>;
  const networks = missing.join(' and ');
  return (
    <Note tone="warn">
      <div className="reach">
        <p className="grow">
          No network rule lets your {missing.length === 1 ? 'address' : 'addresses'} ({networks}) connect.
        </p>
        <Button look="primary" icon="shield" busy={rule.isPending} onClick={() => rule.mutate()}>
          Allow {networks}
        </Button>
      </div>
      {rule.isError && <ErrorNote error={rule.error} />}
    </Note>
  );
}

interface AttemptsProps {
  projectId: string;
  branch: Branch;
  mayRaise: boolean;
  onRaised: () => void;
}

/** The limit of connection attempts, and the networks that it refuses now, with a way to raise it. */
function Attempts({ projectId, branch, mayRaise, onRaised }: AttemptsProps) {
  const raise = useMutation({
    mutationFn: () =>
      dataOf(
        api.PATCH('/api/v1/projects/{project_id}/branches/{branch_ref}', {
          params: inBranch(projectId, branch.branch_name),
          body: { connection_attempts_per_minute: 'max' },
        }),
      ),
    onSuccess: ({ connection_attempts_per_minute }) => {
      announce(`The branch accepts ${connection_attempts_per_minute} connection attempts a minute.`);
      onRaised();
    },
  });
  const closed = branch.closed_to.at(-1);
  if (!closed)
    return (
      <p className="small quiet">
        The branch accepts {branch.connection_attempts_per_minute} connections a minute; the settings of the
        project change it.
      </p>
    );
  return (
    <Note tone="warn">
      <div className="reach">
        <p className="grow">{closed.message}</p>
        {mayRaise && (
          <Button look="primary" busy={raise.isPending} onClick={() => raise.mutate()}>
            Raise it to the maximum
          </Button>
        )}
      </div>
      {raise.isError && <ErrorNote error={raise.error} />}
    </Note>
  );
}

const LOGINS = {
  owner: 'Owner: migrations and tools',
  read_write: 'Read and write: applications',
  read_only: 'Read only: reports',
};
type LoginName = keyof typeof LOGINS;
const LOGIN_NAMES = Object.keys(LOGINS) as LoginName[];

interface RotateProps {
  projectId: string;
  branch: string;
  onClose: () => void;
  onRotated: () => void;
}

/** New passwords. It says what stops working, and main needs its name typed. */
function RotateDialog({ projectId, branch, onClose, onRotated }: RotateProps) {
  const [roles, setRoles] = useState<readonly LoginName[]>(LOGIN_NAMES);
  return (
    <ActionDialog
      title={`Rotate the passwords of ${branch}?`}
      action="Rotate passwords"
      isDangerous
      isReady={roles.length > 0}
      typed={branch === 'main' ? [branch] : []}
      run={() =>
        dataOf(
          api.POST('/api/v1/projects/{project_id}/branches/{branch_ref}/credentials/rotate', {
            params: inBranch(projectId, branch),
            body: { roles: [...roles] },
          }),
        )
      }
      onDone={() => {
        announce(`${branch} has new passwords.`);
        onRotated();
      }}
      onClose={onClose}
      // Without a role, the command would rotate all of them.
      {...(roles.length > 0 && {
        command: (project: string) => COMMANDS.rotate(project, branch, roles),
      })}
    >
      <fieldset className="field">
        <legend>New passwords for</legend>
        {LOGIN_NAMES.map((role) => (
          <Check
            key={role}
            label={LOGINS[role]}
            checked={roles.includes(role)}
            onChange={({ target }) =>
              setRoles(LOGIN_NAMES.filter((each) => (each === role ? target.checked : roles.includes(each))))
            }
          />
        ))}
      </fieldset>
      <Note tone="warn">
        Sessions of these logins end now, and their old passwords stop working. Applications fail until they
        have the new ones.
      </Note>
    </ActionDialog>
  );
}

const ROLES = [
  ['default', 'Read and write'],
  ['owner', 'Owner'],
  ['read_only', 'Read only'],
] as const;
type Role = (typeof ROLES)[number][0];

/** Each read is recorded in the audit log, so it happens only when a person asks for it. */
const useCredentials = (projectId: string, branch: string, role: Role, isWanted: boolean) =>
  useQuery({
    queryKey: ['credentials', projectId, branch, role],
    queryFn: async ({ client }) => {
      const other = await client.ensureQueryData(otherAddressQuery());
      const query = {
        ...(role !== 'default' && { role }),
        ...(other !== null && { other_address: other }),
      };
      return dataOf(
        api.GET('/api/v1/projects/{project_id}/branches/{branch_ref}/credentials', {
          params: { ...inBranch(projectId, branch), query },
        }),
      );
    },
    enabled: isWanted,
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 0,
    refetchOnWindowFocus: false,
  });

export const Route = createFileRoute('/_inside/projects/$projectId/branches/$branch/connect')({
  validateSearch: texts('role', 'snippet'),
  component: ConnectPage,
});

function ConnectPage() {
  const { projectId, branch } = Route.useParams();
  const search = Route.useSearch();
  const navigate = Route.useNavigate();
  const session = useStore(sessionStore);
  const maySee = session.state === 'signed_in' && mayChange(session.me);
  const role = ROLES.find(([name]) => name === search.role)?.[0] ?? 'default';
  const [isWanted, setWanted] = useState(false);
  const [isRotating, setRotating] = useState(false);
  const client = useQueryClient();
  const credentials = useCredentials(projectId, branch, role, isWanted);
  const record = useQuery(branchesQuery(projectId)).data?.find(({ branch_name }) => branch_name === branch);
  return (
    <Page
      title={
        <>
          Connect to <BranchName name={branch} />
        </>
      }
      name={`Connect to ${branch}`}
      about="Applications use the pooled URL. Migrations and tools use the direct one."
      actions={
        maySee && (
          <Button icon="refresh" onClick={() => setRotating(true)}>
            Rotate passwords
          </Button>
        )
      }
    >
      {record?.status === 'expired' && (
        <Note tone="warn">
          This branch has expired and accepts no connections. Extend it on the page of branches.
        </Note>
      )}
      {record && (
        <Attempts
          projectId={projectId}
          branch={record}
          mayRaise={maySee}
          onRaised={() => client.invalidateQueries({ queryKey: branchesQuery(projectId).queryKey })}
        />
      )}
      {!maySee && <Note>Your role cannot see passwords. Ask the owner of the project.</Note>}
      <Choice
        legend="Login"
        name="role"
        options={ROLES}
        value={role}
        onChange={(chosen) =>
          navigate({
            search: (before) => ({ ...before, role: chosen === 'default' ? undefined : chosen }) as never,
          })
        }
        hint={ROLE_HINTS[role]}
      />
      {maySee && !isWanted && (
        <div className="card">
          <Empty icon="lock" title="Passwords are hidden">
            <p>Showing the connection is recorded in the audit log.</p>
            <Button look="primary" icon="eye" onClick={() => setWanted(true)}>
              Show connection
            </Button>
          </Empty>
        </div>
      )}
      {isWanted && (
        <Loaded query={credentials}>
          {(data) => (
            <>
              <Reach
                projectId={projectId}
                branchId={data.branch_id}
                missing={data.missing_networks}
                onChange={() => credentials.refetch()}
              />
              <Snippets
                credentials={data}
                snippet={search.snippet}
                onSnippet={(id) =>
                  navigate({ search: (before) => ({ ...before, snippet: id }), replace: true })
                }
              />
            </>
          )}
        </Loaded>
      )}
      <p className="small quiet">
        Who may connect is decided by{' '}
        <Link to="/projects/$projectId/network-rules" params={{ projectId }}>
          {TEXT.nav.rules}
        </Link>
      </p>
      <CommandLine command={(project) => COMMANDS.connectionString(project, branch, role)} />
      {isRotating && (
        <RotateDialog
          projectId={projectId}
          branch={branch}
          onClose={() => setRotating(false)}
          onRotated={() => {
            setRotating(false);
            if (isWanted) credentials.refetch();
          }}
        />
      )}
    </Page>
  );
}
