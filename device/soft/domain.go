package soft

import (
	"context"
	"fmt"
	"sync"

	"github.com/accelfab/accelfab/device"
)

// domains are the protection domains of a card.
type domains struct {
	mu    sync.Mutex
	byUID map[device.UID]*domain
	byPD  map[device.PD]*domain
	last  device.PD // handles ascend and come back only after a wrap
	limit int
}

type domain struct {
	device.ProtectionDomain
	users int // regions and queue pairs in it
}

func newDomains(limit int) *domains {
	return &domains{byUID: make(map[device.UID]*domain), byPD: make(map[device.PD]*domain), limit: limit}
}

// join makes n objects members of a domain, so that it stays until they leave.
func (d *domains) join(pd device.PD, n int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	dom := d.byPD[pd]
	if dom == nil {
		return &device.FieldError{Field: "protection_domain", Problem: fmt.Sprintf("%d is no protection domain of this device", pd)}
	}
	dom.users += n
	return nil
}

func (d *domains) leave(pd device.PD, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.byPD[pd].users -= n
}

func (d *domains) create(uid device.UID) (device.ProtectionDomain, error) {
	if dom := d.byUID[uid]; dom != nil {
		return dom.ProtectionDomain, nil
	}
	if len(d.byUID) >= d.limit {
		return device.ProtectionDomain{}, &device.LimitError{Kind: "protection_domains", Asked: 1, Limit: uint64(d.limit)}
	}
	for d.last++; d.last == 0 || d.byPD[d.last] != nil; {
		d.last++
	}
	dom := &domain{ProtectionDomain: device.ProtectionDomain{UID: uid, PD: d.last}}
	d.byUID[uid], d.byPD[d.last] = dom, dom
	return dom.ProtectionDomain, nil
}

func (d *domains) destroy(uid device.UID) error {
	dom := d.byUID[uid]
	switch {
	case dom == nil:
		return fmt.Errorf("protection domain: %w", device.ErrNotFound)
	case dom.users > 0:
		return fmt.Errorf("protection domain: %d memory regions and queue pairs are in it: %w", dom.users, device.ErrBusy)
	}
	delete(d.byUID, uid)
	delete(d.byPD, dom.PD)
	return nil
}

// CreateProtectionDomains implements device.ProtectionDomains.
func (c *card) CreateProtectionDomains(ctx context.Context, uids []device.UID) []device.PDResult {
	results := make([]device.PDResult, len(uids))
	c.gate.RLock()
	defer c.gate.RUnlock()
	c.domains.mu.Lock()
	defer c.domains.mu.Unlock()
	for i, uid := range uids {
		r := &results[i]
		if r.Err = c.usable(ctx); r.Err == nil {
			r.ProtectionDomain, r.Err = c.domains.create(uid)
		}
	}
	return results
}

// ListProtectionDomains implements device.ProtectionDomains.
func (c *card) ListProtectionDomains(ctx context.Context) ([]device.ProtectionDomain, error) {
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	c.domains.mu.Lock()
	defer c.domains.mu.Unlock()
	list := make([]device.ProtectionDomain, 0, len(c.domains.byUID))
	for _, dom := range c.domains.byUID {
		list = append(list, dom.ProtectionDomain)
	}
	return list, nil
}

// DestroyProtectionDomains implements device.ProtectionDomains.
func (c *card) DestroyProtectionDomains(ctx context.Context, uids []device.UID) []error {
	errs := make([]error, len(uids))
	c.gate.RLock()
	defer c.gate.RUnlock()
	c.domains.mu.Lock()
	defer c.domains.mu.Unlock()
	for i, uid := range uids {
		if errs[i] = c.usable(ctx); errs[i] == nil {
			errs[i] = c.domains.destroy(uid)
		}
	}
	return errs
}
