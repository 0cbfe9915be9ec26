import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';
import { type Branch, rulesQuery } from '../../app/resources.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { detailsOf, ErrorNote } from '../../components/feedback.tsx';
import { Field, SelectField } from '../../components/field.tsx';
import { announce } from '../../components/toast.tsx';
import { COMMANDS } from '../../strings/commands.ts';
import { RULES_TEXT } from '../../strings/rules.ts';
import './network-rules.css';

const EVERY = '';
const FOREVER = '';
const UNIT_SECONDS: Record<string, number> = { h: 3_600, d: 86_400 };

/** @param life as the command line has it, for instance `8h` */
const secondsOf = (life: string): number | null =>
  life === FOREVER ? null : Number.parseInt(life, 10) * (UNIT_SECONDS[life.slice(-1)] ?? 0);

export function AddRule({ projectId, branches }: { projectId: string; branches: readonly Branch[] }) {
  const client = useQueryClient();
  const [cidr, setCidr] = useState('');
  const [branchId, setBranchId] = useState(EVERY);
  const [description, setDescription] = useState('');
  const [life, setLife] = useState<string>(FOREVER);
  const addition = useMutation({
    mutationFn: () =>
      dataOf(
        api.POST('/api/v1/projects/{project_id}/network-rules', {
          params: { path: { project_id: projectId } },
          body: {
            cidr,
            branch_id: branchId === EVERY ? null : branchId,
            description: description || null,
            ttl_seconds: secondsOf(life),
          },
        }),
      ),
    onSuccess: ({ status }) => {
      announce(status === 'applied' ? RULES_TEXT.added : RULES_TEXT.addedPending);
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
          label={RULES_TEXT.network}
          className="mono"
          placeholder="203.0.113.0/24"
          value={cidr}
          onChange={(event) => setCidr(event.target.value)}
          problem={problem}
          required
        />
        <SelectField
          label={RULES_TEXT.scope}
          value={branchId}
          onChange={(event) => setBranchId(event.target.value)}
        >
          <option value={EVERY}>{RULES_TEXT.everyBranch}</option>
          {branches.map(({ id, branch_name }) => (
            <option key={id} value={id}>
              {branch_name}
            </option>
          ))}
        </SelectField>
        <Field
          label={RULES_TEXT.description}
          value={description}
          maxLength={200}
          onChange={(event) => setDescription(event.target.value)}
        />
        <SelectField label={RULES_TEXT.life} value={life} onChange={(event) => setLife(event.target.value)}>
          {RULES_TEXT.lives.map(([value, label]) => (
            <option key={value} value={value}>
              {label}
            </option>
          ))}
        </SelectField>
        <Button type="submit" look="primary" icon="plus" busy={addition.isPending}>
          {RULES_TEXT.add}
        </Button>
      </div>
      {addition.isError && !problem && <ErrorNote error={addition.error} />}
      {cidr !== '' && (
        <CommandLine
          command={COMMANDS.addRule(
            projectId,
            cidr,
            branches.find(({ id }) => id === branchId)?.branch_name,
            life,
          )}
        />
      )}
    </form>
  );
}
