import { useState } from 'react';
import { isInNetwork, isPlainAddress } from '../../../shared/cidr.ts';
import type { Branch, NetworkRule } from '../../app/resources.ts';
import { Note } from '../../components/feedback.tsx';
import { Field } from '../../components/field.tsx';
import { RULES_TEXT } from '../../strings/rules.ts';

interface Props {
  rules: readonly NetworkRule[];
  branches: readonly Branch[];
}

/** Which branches an address may connect to, and by which rule. */
export function TestAddress({ rules, branches }: Props) {
  const [address, setAddress] = useState('');
  const wanted = address.trim();
  const isAddress = isPlainAddress(wanted);
  const matching = isAddress ? rules.filter(({ cidr }) => isInNetwork(wanted, cidr)) : [];
  const everywhere = matching.filter(({ branch_id }) => branch_id === null);
  const reached = branches.filter(({ id }) => matching.some(({ branch_id }) => branch_id === id));
  return (
    <section className="card padded stack" aria-labelledby="test-address">
      <h2 id="test-address">{RULES_TEXT.test}</h2>
      <Field
        label={RULES_TEXT.address}
        className="mono"
        placeholder="203.0.113.7"
        value={address}
        onChange={(event) => setAddress(event.target.value)}
      />
      {wanted !== '' && (
        <div role="status">
          {!isAddress && <Note>{RULES_TEXT.noAddress}</Note>}
          {isAddress && matching.length === 0 && <Note tone="bad">{RULES_TEXT.reachesNone(wanted)}</Note>}
          {everywhere.length > 0 && (
            <Note tone="good">
              {RULES_TEXT.reachesAll(wanted, everywhere.map(({ cidr }) => cidr).join(', '))}
            </Note>
          )}
          {everywhere.length === 0 && reached.length > 0 && (
            <Note tone="good">
              {RULES_TEXT.reachesSome(wanted, reached.map(({ branch_name }) => branch_name).join(', '))}
            </Note>
          )}
        </div>
      )}
    </section>
  );
}
