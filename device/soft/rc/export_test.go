package rc

// Outstanding counts the packets that the requester has outstanding, READ
// responses included.
func (c *Conn) Outstanding() int { return c.requester.outstanding() }

// WindowSize is the present window in packets.
func (c *Conn) WindowSize() int { return c.requester.window.size }
