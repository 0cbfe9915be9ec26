import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { createFileRoute } from '@tanstack/react-router';
import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { announce, detailsOf, Empty, ErrorNote, Loaded, Note } from '../../components/feedback.tsx';
import { Field, SelectField } from '../../components/field.tsx';
import { api } from '../../data/gateway.ts';
import {
  type Branch,
  branchesQuery,
  type NetworkRule,
  namedNetworksQuery,
  rulesQuery,
} from '../../data/resources.ts';
import { COMMANDS } from '../../strings/commands.ts';
import './network-rules.css';
import { isInNetwork, isPlainAddress } from '../../../shared/cidr.ts';
import { dateTime, duration, secondsUntil } from '../../../shared/format.ts';
import { isNetworkName, NETWORK_NAMES, type NetworkName } from '../../../shared/named-networks.ts';
import { refusedAddressIn } from '../../../shared/refused-address.ts';
import { RULE_VIAS, type RuleVia } from '../../../shared/rule-via.ts';
import { BranchName } from '../../components/branch.tsx';
import { ActionDialog } from '../../components/dialog.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { Page } from '../../components/page.tsx';
import { useNow } from '../../components/time.tsx';
import { refresh } from '../../data/query-client.ts';
import { mayChange, sessionStore } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { TEXT } from '../../strings/common.ts';

const LIVES = [
  ['', 'No end'],
  ['1h', '1 hour'],
  ['8h', '8 hours'],
  ['7d', '7 days'],
  ['30d', '30 days'],
] as const;
const VIAS = { all: 'Ports and SQL over HTTP', sql: 'SQL over HTTP only' } as const satisfies Record<
  RuleVia,
  string
>;
const STATUSES = { applied: 'Applied', pending: 'Pending' } as const;
const SOURCES = { manual: '', creator_ip: 'Address of the creator' } as Record<string, string>;

const EVERY = '';
const FOREVER = '';
const UNIT_SECONDS: Record<string, number> = { h: 3_600, d: 86_400 };

/** @param life as the command line has it, for instance `8h` */
const secondsOf = (life: string): number | null =>
  life === FOREVER ? null : Number.parseInt(life, 10) * (UNIT_SECONDS[life.slice(-1)] ?? 0);

function AddRule({ projectId, branches }: { projectId: string; branches: readonly Branch[] }) {
  const client = useQueryClient();
  const [cidr, setCidr] = useState('');
  const [branchId, setBranchId] = useState(EVERY);
  const [description, setDescription] = useState('');
  const [life, setLife] = useState<string>(FOREVER);
  const [via, setVia] = useState<RuleVia>('all');
  const addition = useMutation({
    mutationFn: () =>
      dataOf(
        api.POST('/api/v1/projects/{project_id}/network-rules', {
          params: { path: { project_id: projectId } },
          body: {
            ...(isNetworkName(cidr.trim()) ? { network: cidr.trim() as NetworkName } : { cidr }),
            branch_id: branchId === EVERY ? null : branchId,
            description: description || null,
            ttl_seconds: secondsOf(life),
            via,
          },
        }),
      ),
    onSuccess: ({ status }) => {
      announce(status === 'applied' ? 'The rule is in effect.' : TEXT.states.rulePending);
      setCidr('');
      setDescription('');
      client.invalidateQueries({ queryKey: rulesQuery(projectId).queryKey });
    },
  });
  const problem = detailsOf(addition.error).find(({ path }) => path === 'cidr')?.message;
  return (
    <form
      className="card padded stack"
      onSubmit={(event) => {
        event.preventDefault();
        if (!addition.isPending) addition.mutate();
      }}
    >
      <div className="rule-form">
        <Field
          label="Address or network"
          className="mono"
          placeholder="203.0.113.0/24"
          hint={`Or ${NETWORK_NAMES.join(', ')}, whose networks are kept current. Or paste the error of a refused login: it names the address that the database host sees.`}
          value={cidr}
          onChange={(event) => setCidr(refusedAddressIn(event.target.value) ?? event.target.value)}
          problem={problem}
          required
        />
        <SelectField label="For" value={branchId} onChange={(event) => setBranchId(event.target.value)}>
          <option value={EVERY}>Every branch</option>
          {branches.map(({ id, branch_name }) => (
            <option key={id} value={id}>
              {branch_name}
            </option>
          ))}
        </SelectField>
        <Field
          label="Description (optional)"
          value={description}
          maxLength={200}
          onChange={(event) => setDescription(event.target.value)}
        />
        <SelectField label="Ends after" value={life} onChange={(event) => setLife(event.target.value)}>
          {LIVES.map(([value, label]) => (
            <option key={value} value={value}>
              {label}
            </option>
          ))}
        </SelectField>
        <SelectField label="Opens" value={via} onChange={(event) => setVia(event.target.value as RuleVia)}>
          {RULE_VIAS.map((way) => (
            <option key={way} value={way}>
              {VIAS[way]}
            </option>
          ))}
        </SelectField>
        <Button type="submit" look="primary" icon="plus" busy={addition.isPending}>
          Add rule
        </Button>
      </div>
      {addition.isError && !problem && <ErrorNote error={addition.error} />}
      {cidr !== '' && (
        <CommandLine
          command={(project) =>
            COMMANDS.addRule(project, cidr, {
              branch: branches.find(({ id }) => id === branchId)?.branch_name,
              ttl: life,
              via: via === 'all' ? undefined : via,
            })
          }
        />
      )}
    </form>
  );
}

interface RemoveProps {
  projectId: string;
  rule: NetworkRule;
  branch: string | undefined;
  onClose: () => void;
}

const RemoveRuleDialog = ({ projectId, rule, branch, onClose }: RemoveProps) => (
  <ActionDialog
    title="Remove this rule?"
    action="Remove rule"
    isDangerous
    run={() =>
      dataOf(
        api.DELETE('/api/v1/projects/{project_id}/network-rules/{rule_id}', {
          params: { path: { project_id: projectId, rule_id: rule.id } },
        }),
      )
    }
    onDone={(pending) => {
      announce(
        pending
          ? 'The rule stays in effect until the database host is connected again.'
          : 'The rule is removed.',
      );
      refresh(rulesQuery(projectId));
    }}
    onClose={onClose}
    command={(project) => COMMANDS.removeRule(project, rule.id)}
  >
    <p>
      {rule.cidr} can then no longer connect to: {branch ?? 'Every branch'}. Its sessions end.
    </p>
  </ActionDialog>
);

interface TestProps {
  rules: readonly NetworkRule[];
  branches: readonly Branch[];
}

/** Which branches an address may connect to, and by which rule. */
function TestAddress({ rules, branches }: TestProps) {
  const [address, setAddress] = useState('');
  const wanted = address.trim();
  const isAddress = isPlainAddress(wanted);
  const isNamed = rules.some(({ network }) => network !== null);
  const lists = useQuery({ ...namedNetworksQuery(), enabled: isNamed }).data ?? [];
  const rangesOf = ({ cidr, network }: NetworkRule) =>
    network === null ? [cidr] : (lists.find((list) => list.network === network)?.cidrs ?? []);
  const matching = isAddress
    ? rules.filter((rule) => rangesOf(rule).some((range) => isInNetwork(wanted, range)))
    : [];
  const atPorts = matching.filter(({ via }) => via === 'all');
  const everywhere = atPorts.filter(({ branch_id }) => branch_id === null);
  const reached = branches.filter(({ id }) => atPorts.some(({ branch_id }) => branch_id === id));
  const overHttp = matching.filter(({ via }) => via === 'sql');
  return (
    <section className="card padded stack" aria-labelledby="test-address">
      <h2 id="test-address">Test an address</h2>
      <Field
        label="Address"
        className="mono"
        placeholder="203.0.113.7"
        value={address}
        onChange={(event) => setAddress(event.target.value)}
      />
      {wanted !== '' && (
        <div role="status">
          {!isAddress && <Note>Enter an IPv4 or IPv6 address.</Note>}
          {isAddress && atPorts.length === 0 && (
            <Note tone="bad">{wanted} cannot connect to the ports of any branch.</Note>
          )}
          {everywhere.length > 0 && (
            <Note tone="good">
              {wanted} can connect to every branch, by {everywhere.map(({ cidr }) => cidr).join(', ')}.
            </Note>
          )}
          {everywhere.length === 0 && reached.length > 0 && (
            <Note tone="good">
              {wanted} can connect to {reached.map(({ branch_name }) => branch_name).join(', ')}.
            </Note>
          )}
          {overHttp.length > 0 && (
            <Note>
              {wanted} can use SQL over HTTP, and not the ports, by{' '}
              {overHttp.map(({ cidr }) => cidr).join(', ')}.
            </Note>
          )}
        </div>
      )}
    </section>
  );
}

function End({ at }: { at: string | null }) {
  const now = useNow();
  if (at === null) return <span className="quiet">No end</span>;
  return <span title={dateTime(at)}>in {duration(secondsUntil(at, now))}</span>;
}

export const Route = createFileRoute('/_inside/projects/$projectId/network-rules')({
  component: NetworkRulesPage,
});

function NetworkRulesPage() {
  const { projectId } = Route.useParams();
  const rules = useQuery(rulesQuery(projectId));
  const branches = useQuery(branchesQuery(projectId)).data ?? [];
  const session = useStore(sessionStore);
  const mayEdit = session.state === 'signed_in' && mayChange(session.me);
  const [leaving, setLeaving] = useState<NetworkRule | null>(null);
  const nameOf = (id: string | null) => branches.find((branch) => branch.id === id)?.branch_name;
  return (
    <Page
      title={TEXT.nav.rules}
      about="Only these networks can connect to the databases. Without a rule, nobody can."
    >
      {!mayEdit && <Note>{TEXT.states.readOnly}</Note>}
      {mayEdit && <AddRule projectId={projectId} branches={branches} />}
      <Loaded query={rules}>
        {(all) => (
          <>
            <div className="card">
              {all.length === 0 ? (
                <Empty icon="shield" title="Nobody can connect">
                  <p>Add the network of your office or of your application.</p>
                </Empty>
              ) : (
                <ListTable columns={['Network', 'For', 'Opens', 'State', 'Description', 'Ends']}>
                  {all.map((rule) => (
                    <tr key={rule.id}>
                      <td className="mono rule-network">{rule.cidr}</td>
                      <td>
                        {rule.branch_id === null ? (
                          'Every branch'
                        ) : (
                          <BranchName name={nameOf(rule.branch_id) ?? rule.branch_id} />
                        )}
                      </td>
                      <td>{VIAS[rule.via]}</td>
                      <td>
                        <span className={rule.status === 'applied' ? 'badge good' : 'badge warn busy'}>
                          {STATUSES[rule.status]}
                        </span>
                      </td>
                      <td className="rule-description">
                        <div>
                          <div>{rule.description ?? SOURCES[rule.source]}</div>
                          <div className="small quiet">Added {dateTime(rule.created_at)}</div>
                        </div>
                      </td>
                      <td className="nowrap">
                        <End at={rule.expires_at} />
                      </td>
                      <td className="actions">
                        {mayEdit && (
                          <Button
                            compact
                            look="bare"
                            icon="trash"
                            aria-label={`Remove ${rule.cidr}`}
                            onClick={() => setLeaving(rule)}
                          />
                        )}
                      </td>
                    </tr>
                  ))}
                </ListTable>
              )}
            </div>
            <TestAddress rules={all} branches={branches} />
          </>
        )}
      </Loaded>
      <CommandLine command={COMMANDS.listRules} />
      {leaving && (
        <RemoveRuleDialog
          projectId={projectId}
          rule={leaving}
          branch={nameOf(leaving.branch_id)}
          onClose={() => setLeaving(null)}
        />
      )}
    </Page>
  );
}
